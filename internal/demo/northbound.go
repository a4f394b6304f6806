package demo

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-net/berth/internal/memnb"
)

// The northbound databases that a demo may run on.
const (
	// NorthboundAuto is the real server where it is installed, and memory otherwise.
	NorthboundAuto = "auto"
	// NorthboundServer is a real ovsdb-server with OVN's schema.
	NorthboundServer = "ovsdb-server"
	// NorthboundMemory is a server in this process.
	NorthboundMemory = "memory"
)

// installedSchema is where OVN's packages put the schema of its northbound database.
const installedSchema = "/usr/share/ovn/ovn-nb.ovsschema"

// northbound is a database that was chosen.
type northbound struct {
	// text says which one it is, and why.
	text  string
	start func(ctx context.Context, w *world) (endpoint string, err error)
}

// install is where the real server is.
type install struct{ server, tool, schema string }

// findInstall looks for all that the real server needs, and tells what is missing.
func findInstall(schema string, find func(string) (string, error)) (install, error) {
	in := install{schema: schema}
	var err error
	if in.server, err = find("ovsdb-server"); err != nil {
		return in, err
	}
	if in.tool, err = find("ovsdb-tool"); err != nil {
		return in, err
	}
	if _, err := os.Stat(schema); err != nil {
		return in, err
	}
	return in, nil
}

// findProgram also looks where administrators' programs are: not every user has that in PATH.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if path, other := exec.LookPath(filepath.Join("/usr/sbin", name)); other == nil {
		return path, nil
	}
	return "", err
}

// choose decides which database a demo runs on. missing tells why it can't be the real one.
func choose(wanted string, in install, missing error) (northbound, error) {
	switch {
	case wanted == NorthboundMemory:
		return northbound{"in memory", inMemory}, nil
	case wanted == NorthboundServer && missing != nil:
		return northbound{}, fmt.Errorf("the demo was asked for a real northbound database: apt-get install ovn-central, or use --northbound=%s (%w)", NorthboundMemory, missing)
	case wanted == NorthboundAuto && missing != nil:
		return northbound{fmt.Sprintf("in memory (no real one: %v)", missing), inMemory}, nil
	case wanted == NorthboundServer, wanted == NorthboundAuto:
		return northbound{"a real ovsdb-server", in.start}, nil
	}
	return northbound{}, fmt.Errorf("--northbound=%s is not known: use %s, %s or %s", wanted, NorthboundAuto, NorthboundServer, NorthboundMemory)
}

// start starts ovsdb-server on an empty database.
func (in install) start(ctx context.Context, w *world) (string, error) {
	db, sock := filepath.Join(w.dir, "nb.db"), filepath.Join(w.dir, "nb.sock")
	if out, err := exec.CommandContext(ctx, in.tool, "create", db, in.schema).CombinedOutput(); err != nil {
		return "", fmt.Errorf("ovsdb-tool: %w: %s", err, out)
	}
	//nolint:noctx // it is stopped after all that uses it
	cmd := exec.Command(in.server, "--remote=punix:"+sock, "--unixctl="+filepath.Join(w.dir, "ctl"), db)
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("ovsdb-server: %w", err)
	}
	w.stop = append(w.stop, func() {
		_ = cmd.Process.Kill() // an error means that it has ended by itself
		_ = cmd.Wait()         // it was killed
	})
	return "unix:" + sock, nil
}

// inMemory starts the server of this process.
func inMemory(ctx context.Context, w *world) (string, error) {
	s, err := memnb.Start(ctx, memnb.Options{Socket: filepath.Join(w.dir, "nb.sock")})
	if err != nil {
		return "", err
	}
	w.stop = append(w.stop, func() { _ = s.Close() }) // nothing is kept
	return s.Endpoint(), nil
}
