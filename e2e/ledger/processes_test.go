//go:build e2e

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

const (
	// jobVariable makes this test's program one of the processes.
	jobVariable = "BERTH_LEDGER_JOB"
	// seedVariable and secondsVariable choose the run; unset, the seed is new and the run takes 35 s.
	seedVariable    = "BERTH_LEDGER_SEED"
	secondsVariable = "BERTH_LEDGER_SECONDS"

	processes = 3
	takers    = 5
)

// childMain is the program of one process: it takes and frees until its standard input ends.
func childMain(text string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	ctx = klog.NewContext(ctx, klog.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := child(ctx, text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func child(ctx context.Context, text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	c, err := clientcmd.BuildConfigFromFlags("", j.Kubeconfig)
	if err != nil {
		return err
	}
	s, err := blockstore.New(config(c))
	if err != nil {
		return err
	}
	d, err := openDiary(chapterFile(j.Dir, j.Process, j.Life))
	if err != nil {
		return err
	}
	return play(ctx, j, s, s, d.say)
}

// life is a running process.
type life struct {
	job    job
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *strings.Builder
	killed bool
}

func (j job) begin() (*life, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &life{job: j, cmd: exec.Command(self), stderr: &strings.Builder{}}
	l.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	l.cmd.Stderr = l.stderr
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return l, l.cmd.Start()
}

// kill ends the process in the middle of whatever it does.
func (l *life) kill() error {
	l.killed = true
	if err := l.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("process %d ended before it was killed: %w\n%s", l.job.Process, err, l.stderr)
	}
	var exit *exec.ExitError
	if err := l.cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
		return fmt.Errorf("process %d ended by itself before it was killed: %w\n%s", l.job.Process, err, l.stderr)
	}
	return nil
}

// end lets the process finish the calls under way.
func (l *life) end() error {
	if err := l.stdin.Close(); err != nil {
		return err
	}
	if err := l.cmd.Wait(); err != nil {
		return fmt.Errorf("process %d: %w\n%s", l.job.Process, err, l.stderr)
	}
	return nil
}

// TestProcesses has three processes take and free addresses of a subnet of 11 and of one of 65,533 at once, as fast as
// they can, while they are killed, started again and stopped for a moment. What they wrote down and what is stored must
// agree in the end.
func TestProcesses(t *testing.T) {
	h := start(t)
	seed := uint64(number(t, seedVariable, int(time.Now().UnixNano()&0xffffff)))
	lasts := time.Duration(number(t, secondsVariable, 35)) * time.Second
	t.Logf("%s=%d", seedVariable, seed)
	base := job{Dir: t.TempDir(), Seed: seed, Takers: takers, Kubeconfig: h.Kubeconfig(), Small: smallSubnet(), Big: bigSubnet()}
	chapters := rampage(t, base, lasts)
	have := h.stored(t)
	s := check(chapters, have, base.Small, base.Big)
	report(t, s, chapters, lasts)
	for n, f := range s.faults {
		if t.Error(f); n == 30 {
			t.Fatalf("and %d more", len(s.faults)-n)
		}
	}
	if s.counts[taken] < 100 || s.counts[freed] < 80 || s.counts[refused+" Exhausted"] == 0 || s.counts[refused+" AddressHeld"] == 0 {
		t.Errorf("too little happened to show anything: %v", s.counts)
	}
	for _, spec := range []subnetSpec{base.Small, base.Big} {
		h.figures(t, spec, have)
	}
	h.exhaust(t, base.Small)
}

func number(t *testing.T, variable string, fallback int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// rampage runs the processes and returns what they wrote down.
func rampage(t *testing.T, base job, lasts time.Duration) []chapter {
	t.Helper()
	random := rand.New(rand.NewPCG(base.Seed, 0))
	var lives [processes][]*life
	begin := func(p int) {
		j := base
		j.Process, j.Life = p, len(lives[p])
		l, err := j.begin()
		if err != nil {
			t.Fatal(err)
		}
		lives[p] = append(lives[p], l)
	}
	last := func(p int) *life { return lives[p][len(lives[p])-1] }
	t.Cleanup(func() {
		for p := range lives {
			if n := len(lives[p]); n > 0 && last(p).cmd.ProcessState == nil {
				_ = last(p).cmd.Process.Kill()
			}
		}
	})
	for p := range processes {
		begin(p)
	}
	for deadline := time.Now().Add(lasts); time.Now().Before(deadline); {
		time.Sleep(time.Duration(200+random.IntN(1300)) * time.Millisecond)
		p := random.IntN(processes)
		if random.IntN(4) == 0 { // a pause, after which the process goes on with what it knew
			pause(t, last(p), time.Duration(50+random.IntN(700))*time.Millisecond)
			continue
		}
		if err := last(p).kill(); err != nil {
			t.Fatal(err)
		}
		begin(p)
	}
	var chapters []chapter
	for p := range lives {
		if err := last(p).end(); err != nil {
			t.Fatal(err)
		}
		cs, err := readLives(base.Dir, p, len(lives[p]))
		if err != nil {
			t.Fatal(err)
		}
		for n := range cs {
			cs[n].Killed = lives[p][n].killed
		}
		chapters = append(chapters, cs...)
	}
	return chapters
}

func pause(t *testing.T, l *life, d time.Duration) {
	t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(d)
	if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, s *story, chapters []chapter, lasts time.Duration) {
	t.Helper()
	killed, torn := 0, 0
	for _, c := range chapters {
		if c.Killed {
			killed++
		}
	}
	for _, w := range s.claims {
		if w.killed && (w.state == asks || w.state == doubtful) {
			torn++
		}
	}
	t.Logf("%d kills; %d takes answered (%.0f/s), %d frees; %d calls interrupted and never heard of again; events %v",
		killed, s.counts[taken], float64(s.counts[taken])/lasts.Seconds(), s.counts[freed], torn, s.counts)
}

// stored reads the blocks as they are, apart from the code under test.
func (h *harness) stored(t testing.TB) stored {
	t.Helper()
	l, err := h.dynamic.Resource(blocks()).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := stored{}
	for _, o := range l.Items {
		subnet, _, _ := unstructured.NestedString(o.Object, "spec", "subnet")
		leases, _, err := unstructured.NestedStringSlice(o.Object, "spec", "leases")
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range leases {
			lease, err := v1alpha1.ParseLease(x)
			if err != nil {
				t.Fatal(err)
			}
			name := lease.Address
			if name == "" {
				name = "MAC " + lease.MAC
			}
			if name = subnet + "/" + name; out[name] != "" {
				t.Errorf("%s is stored twice, under %s and %s", name, out[name], lease.Claim)
			}
			out[name] = lease.Claim
		}
	}
	return out
}

// figures compares what a ledger counts with what is stored.
func (h *harness) figures(t *testing.T, spec subnetSpec, have stored) {
	t.Helper()
	sub, err := spec.build()
	if err != nil {
		t.Fatal(err)
	}
	store := h.store(t)
	l := watched(t, store, store, "counter")
	for f, family := range map[ipam.Family]string{ipam.IPv4: "IPv4", ipam.IPv6: "IPv6"} {
		leased, excluded := 0, 0
		for name := range have {
			a, err := netip.ParseAddr(strings.TrimPrefix(name, spec.Name+"/"))
			if err == nil && ipam.FamilyOf(a) == f {
				leased++
			}
		}
		for _, a := range spec.Excluded {
			if ipam.FamilyOf(a) == f && have[spec.Name+"/"+a.String()] == "" {
				excluded++
			}
		}
		free := 0
		for _, a := range spec.unasked(family) {
			if have[spec.Name+"/"+a.String()] == "" {
				free++
			}
		}
		got := l.Figures(sub, f)
		if got.Leased != leased || got.Excluded.Cmp(big.NewInt(int64(excluded))) != 0 || got.Free.Cmp(big.NewInt(int64(free))) != 0 ||
			got.Size.Cmp(big.NewInt(int64(free+leased+excluded))) != 0 {
			t.Errorf("%s %s counts %+v, stored are %d leases, %d excluded and %d free addresses", spec.Name, family, got, leased, excluded, free)
		}
	}
}

// exhaust takes what is left of a subnet, one by one: as many as it counts.
func (h *harness) exhaust(t *testing.T, spec subnetSpec) {
	t.Helper()
	sub, err := spec.build()
	if err != nil {
		t.Fatal(err)
	}
	store := h.store(t)
	l := watched(t, store, store, "last")
	want := l.Figures(sub, ipam.IPv4).Free.Int64()
	for n := int64(0); ; n++ {
		err := takeOne(t.Context(), l, sub, ipam.IPv4)
		var full *ipam.ExhaustedError
		if errors.As(err, &full) && n == want {
			return
		}
		if err != nil {
			t.Fatalf("address %d of %d: %v", n+1, want, err)
		}
	}
}
