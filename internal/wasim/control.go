package wasim

import "net/http"

func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/ws/chat", s.serveSocket)
	m.HandleFunc("/ws/chat/", s.serveSocket)
	return m
}
