package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/berth-net/berth/e2e/proc"
)

// state is what a cluster's directory remembers.
type state struct {
	Options
	// Subnet is the machine network; its first address is the host's.
	Subnet netip.Prefix
	// Processes in the order of their start.
	Processes []*processState

	mu sync.Mutex
}

// processState is one process: how it is started and, while it runs, which it is.
type processState struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	ID      proc.ID  `json:"id"`
}

func stateFile(dir string) string { return filepath.Join(dir, "cluster.json") }

// save replaces the state file.
func (s *state) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	file := stateFile(s.Dir)
	if err := os.WriteFile(file+".tmp", text, 0o600); err != nil {
		return fmt.Errorf("keep the cluster's state: %w", err)
	}
	return os.Rename(file+".tmp", file)
}

func (s *state) load(dir string) error {
	if dir == "" {
		dir = DefaultDir
	}
	text, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return &NotFoundError{dir}
	}
	if err != nil {
		return fmt.Errorf("read the cluster's state: %w", err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return fmt.Errorf("%s is damaged, remove it and what carries the cluster's name: %w", stateFile(dir), err)
	}
	return nil
}

// hostIP is the host's address on the machine network.
func (s *state) hostIP() string { return s.address(0, 1) }

// nodeIP is the address of a node, counted from 0, and tunnelIP that of its tunnels.
func (s *state) nodeIP(n int) string   { return s.address(0, 10+n) }
func (s *state) tunnelIP(n int) string { return s.address(1, 10+n) }

func (s *state) bridge() string                 { return s.Name + "-br" }
func (s *state) nodeNetns(node string) string   { return s.Name + "-" + node }
func (s *state) nodeDir(node string) string     { return filepath.Join(s.Dir, "nodes", node) }
func (s *state) nodeKubeconfig(n string) string { return filepath.Join(s.nodeDir(n), "kubeconfig") }
func (s *state) nodeOVSDB(node string) string {
	return "unix:" + filepath.Join(s.nodeDir(node), "db.sock")
}
