package wa

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.mau.fi/libsignal/logger"
	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/types"
)

func testSink(level slog.Level) (*waLogger, *bytes.Buffer, *[]int) {
	var out bytes.Buffer
	var codes []int
	sink := &waSink{
		log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})), ctx: context.Background(),
		serverError: func(code int) { codes = append(codes, code) },
	}
	return &waLogger{waSink: sink}, &out, &codes
}

func TestLogsCarryNoNumbersAndNoStanzas(t *testing.T) {
	l, out, _ := testSink(slog.LevelDebug)
	node := &waBinary.Node{Tag: "message", Content: []byte("secret words")}
	jid := types.NewJID("5511900000001", types.DefaultUserServer)
	l.Warnf("Node handling took 6s for %s", node)
	l.Errorf("Failed to encrypt %s for %s", "3EB0", jid)
	l.Debugf("Fetching %v", []types.JID{jid})
	l.Debugf("Errored frame hex: %s", "73656372657420776f726473")
	l.Sub("Recv").Debugf("%s", node)
	l.Sub("Send").Debugf("%s", node)
	l.Sub("Socket").Infof("dialling %s", jid)
	got := out.String()
	for _, bad := range []string{"5511900000001", "secret words", "73656372"} {
		if strings.Contains(got, bad) {
			t.Errorf("log has %q:\n%s", bad, got)
		}
	}
	for _, want := range []string{"<message>", "…0001", "1 addresses", "module=Socket"} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
}

func TestWhatsmeowIsQuietBelowDebugAndAfterTheEnd(t *testing.T) {
	l, out, _ := testSink(slog.LevelInfo)
	l.Infof("info of whatsmeow")
	l.Debugf("debug of whatsmeow")
	if out.Len() != 0 {
		t.Errorf("at level info the log has %q, want nothing", out)
	}
	l.Warnf("warning")
	if out.Len() == 0 {
		t.Error("a warning of whatsmeow is not logged at level info")
	}
	out.Reset()
	<-l.lines.close()
	l.Errorf("late")
	if out.Len() != 0 {
		t.Errorf("after the end the log has %q, want nothing", out)
	}
}

func TestServerErrorsAreReadFromTheOnlyPlaceThatHasThem(t *testing.T) {
	l, _, codes := testSink(slog.LevelDebug)
	l.Warnf(logStream503)
	l.Warnf(logConnect5xx, 500, "")
	l.Warnf("Unknown stream error")
	if len(*codes) != 2 || (*codes)[0] != 503 || (*codes)[1] != 500 {
		t.Errorf("server errors = %v, want 503 and 500", *codes)
	}
	// The texts must be those of the version in go.mod.
	src := whatsmeowFile(t, "go.mau.fi/whatsmeow", "connectionevents.go")
	for _, text := range []string{logStream503, logConnect5xx} {
		if !strings.Contains(src, `"`+text+`"`) {
			t.Errorf("whatsmeow no longer logs %q", text)
		}
	}
}

func TestLibsignalIsSilent(t *testing.T) {
	// nil means that it would make its own on first use; the simulator in this test binary silences it as well.
	if l := fmt.Sprintf("%T", logger.Logger); !strings.Contains(strings.ToLower(l), "silent") {
		t.Errorf("libsignal logs to %s, want silence", l)
	}
}

// An upgrade of whatsmeow may bring new events. Each must be handled or left alone on purpose.
func TestEveryEventOfWhatsmeowIsHandledOrKnown(t *testing.T) {
	// Parts of events, and what this kind of client can't get.
	parts := map[string]bool{
		"PermanentDisconnect": true, "TempBanReason": true, "ConnectFailureReason": true, "DecryptFailMode": true,
		"UnavailableType": true, "NewsletterMessageMeta": true, "MediaRetryError": true, "BlocklistAction": true,
		"BlocklistChangeAction": true, "BlocklistChange": true, "MexNotificationData": true, "ReceiptType": true,
		"FBMessage": true, // of Messenger: counted as unknown
	}
	ours, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`\*events\.(\w+)`).FindAllStringSubmatch(string(ours), -1) {
		named[m[1]] = true
	}
	pkg, err := build.Import("go.mau.fi/whatsmeow/types/events", ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fs.Glob(os.DirFS(pkg.Dir), "*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of whatsmeow's events = %v, %v", files, err)
	}
	found := 0
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() || parts[spec.Name.Name] {
				return true
			}
			found++
			if !named[spec.Name.Name] {
				t.Errorf("events.%s is neither handled nor listed in known()", spec.Name.Name)
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("found %d events, want the whole list", found)
	}
}

func whatsmeowFile(t *testing.T, path, name string) string {
	t.Helper()
	pkg, err := build.Import(path, ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(pkg.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
