package worker

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// A conflict tells nothing of the pod, and a policy that refuses answers with the code of a failed test: no event need
// follow either.
func TestPatchOfAPodIsTriedAgain(t *testing.T) {
	cases := map[string]func(name string) error{
		"after conflicts": func(name string) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, errors.New("the store is busy"))
		},
		"after refusals": func(name string) error {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, field.ErrorList{
				field.Forbidden(field.NewPath("metadata", "annotations"), "the policy is not ready")})
		},
	}
	for name, failure := range cases {
		t.Run(name, func(t *testing.T) {
			var patches atomic.Int32
			w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
				if r.Verb == "patch" && r.Resource == "pods" && r.HTTP.UserAgent() != testAgent && patches.Add(1) <= 2 {
					return memkube.Fault{Err: failure(r.Name)}
				}
				return memkube.Fault{}
			}})
			w.admit(podNamed("a", onNode))
			w.wired("a")
			if n := patches.Load(); n < 3 {
				t.Errorf("%d patches, want two failures and then a success", n)
			}
		})
	}
}

// What stays true is told once, whatever a sweep finds in between, and after long again.
func TestToldOnce(t *testing.T) {
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	told := 0
	w := &Worker{Options: Options{Clock: clock, Log: funcr.New(func(string, string) { told++ }, funcr.Options{})}, told: map[string]time.Time{}}
	for range 3 {
		w.tellOnce("key", "message")
		w.twice(nil)
		clock.Step(time.Minute)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	clock.Step(tellAgain)
	w.tellOnce("other", "message")
	w.tellOnce("key", "message")
	if told != 3 || len(w.told) != 2 {
		t.Errorf("told %d times, %d things are remembered", told, len(w.told))
	}
}

// Figures that were compared with an old version of a subnet aren't written a second time, unless writing failed.
func TestFiguresAreWrittenOnceOverAVersion(t *testing.T) {
	var fails atomic.Bool
	w := newWorld(t, worldOptions{intercept: func(memkube.Request) memkube.Fault {
		if fails.Load() {
			return memkube.Fault{Err: errors.New("out of order")}
		}
		return memkube.Fault{}
	}})
	w.stop()
	x := &Worker{Options: Options{Client: w.client}, figured: map[types.UID]string{}}
	old := w.subnet("s")
	write := func(want int) {
		t.Helper()
		w.kube.ResetRequests()
		err := x.patchStatus(w.ctx, &kubeovnv1.Subnet{}, old, difference{"v4usingIPs": 7})
		n := 0
		for k, times := range w.kube.Requests() {
			if strings.HasPrefix(k, "patch subnets") {
				n += times
			}
		}
		if n != want || (err != nil) != fails.Load() {
			t.Errorf("%d writes, want %d: %v", n, want, err)
		}
	}
	fails.Store(true)
	write(1)
	fails.Store(false)
	write(1)
	write(0)
	old = w.subnet("s")
	write(1)
}
