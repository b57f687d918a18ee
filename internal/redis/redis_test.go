package redis

import (
	"strings"
	"testing"
)

func TestRedisURLErrorsNeverShowThePassword(t *testing.T) {
	for _, raw := range []string{"redis://:secret-word@host:port", "http://user:secret-word@host", "redis://:secret-word@%zz"} {
		err := CheckURL(raw)
		if err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("CheckURL(%q) = %v, want an error without the password", raw, err)
		}
	}
	for _, raw := range []string{"127.0.0.1:6379", "redis://127.0.0.1", "rediss://user:pw@redis.example:6380/2"} {
		if err := CheckURL(raw); err != nil {
			t.Errorf("CheckURL(%q) = %v, want nil", raw, err)
		}
	}
}

func FuzzCheckURL(f *testing.F) {
	const password = "pa55w0rd"
	f.Add("redis://u:", "@h:1/2?protocol=3")
	f.Add("rediss://:", "@h/x")
	f.Add("unix:///", "?db=1")
	f.Add("redis://[::1", "?dial_timeout=x&max_retries=-1")
	f.Add("", "\x00")
	f.Fuzz(func(t *testing.T, before, after string) {
		if err := CheckURL(before + password + after); err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("CheckURL(%q) repeats in its error what may be a password: %v", before+password+after, err)
		}
	})
}
