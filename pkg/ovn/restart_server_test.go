package ovn

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestB89ServerRestartsUnderLoad(t *testing.T) {
	s, c, w := setup(t)
	const pods, rounds = 30, 8
	var wg sync.WaitGroup
	for p := range pods {
		wg.Go(func() {
			for r := range rounds {
				ch := podChange(fmt.Sprintf("p%d-%d", p, r), "s1", NodeGroup(fmt.Sprintf("n%d", r)))
				if err := w.Apply(t.Context(), ch); err != nil {
					t.Error(err)
				}
				if r%2 == 0 {
					continue
				}
				if err := w.Apply(t.Context(), Change{RemovePorts: []string{fmt.Sprintf("p%d-%d.default", p, r)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for range 3 {
		waitUntil(t, c, func() bool { return c.Ready() == nil })
		s.stop()
		waitUntil(t, c, func() bool { return c.Ready() != nil })
		if err := c.Ready(); !errors.Is(err, ErrNotReady) {
			t.Errorf("Ready while the server is down: %v", err)
		}
		s.start()
	}
	<-done
	if got := len(c.Ports()); got != pods*rounds/2 {
		t.Errorf("%d ports in the mirror, want %d", got, pods*rounds/2)
	}
	names := strings.Fields(s.nbctl("--bare", "--columns=name", "list", "Logical_Switch_Port"))
	if len(names) != pods*rounds/2 {
		t.Errorf("%d ports in the database, want %d", len(names), pods*rounds/2)
	}
	if got := strings.Fields(s.nbctl("--bare", "--columns=name", "list", "Logical_Switch")); len(got) != 2 {
		t.Errorf("switches %v, want two", got)
	}
}

func TestB89NothingIsReadyWithoutASnapshot(t *testing.T) {
	t.Parallel()
	s := startServer(t, installedSchema)
	s.stop()
	done := make(chan *Client, 1)
	go func() { done <- s.connect() }()
	s.start()
	c := <-done
	if err := c.Ready(); err != nil {
		t.Error(err)
	}
	c.Close()
	if err := c.Ready(); !errors.Is(err, ErrNotReady) {
		t.Errorf("Ready after Close: %v", err)
	}
}

func TestB94LostDatabaseIsAnErrorAndNoPanic(t *testing.T) {
	s, c, w := setup(t)
	apply(t, w, podChange("web-0", "s1"))
	s.stop()
	waitUntil(t, c, func() bool { return c.Ready() != nil })
	if _, ok := c.Port("web-0.default"); !ok {
		t.Error("what was last known is gone: absence must not be mistaken for removal")
	}
	errs := make(chan error, 1)
	go func() { errs <- w.Apply(t.Context(), podChange("web-1", "s1")) }()
	s.start()
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

func TestDatabaseIsReplacedByAnEmptyOne(t *testing.T) {
	s, c, w := setup(t)
	s.stop()
	if err := os.Remove(s.path("nb.db")); err != nil {
		t.Fatal(err)
	}
	s.run("ovsdb-tool", "create", s.path("nb.db"), installedSchema)
	s.start()
	waitUntil(t, c, func() bool { return c.Ready() == nil && len(c.Switches()) == 0 })
	ch := podChange("web-0", "s1")
	ch.Ensure.Switches = append(ch.Ensure.Switches, vendorSwitch("s1"))
	if err := w.Apply(t.Context(), ch); !errors.Is(err, ErrFenced) {
		t.Errorf("%v, want ErrFenced: an empty database has another epoch", err)
	}
	apply(t, s.writer(c), ch)
}

func TestSchemaWithoutWhatIsNeeded(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(installedSchema)
	if err != nil {
		t.Fatalf("%v: run `apt-get install ovn-central`", err)
	}
	schema := strings.ReplaceAll(strings.ReplaceAll(string(text), `"port_security"`, `"port_safety"`), `"Port_Group"`, `"Port_Gang"`)
	file := t.TempDir() + "/schema"
	if err := os.WriteFile(file, []byte(schema), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, file)
	_, err = Connect(t.Context(), Config{Endpoints: []string{s.endpoint()}})
	var lacking *SchemaError
	if !errors.As(err, &lacking) {
		t.Fatalf("%v, want *SchemaError", err)
	}
	if diff := cmp.Diff([]string{"Logical_Switch_Port.port_security", "Port_Group"}, lacking.Missing); diff != "" {
		t.Error(diff)
	}
}
