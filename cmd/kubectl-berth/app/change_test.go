package app

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

func TestReserve(t *testing.T) {
	w := shop(t)
	for name, c := range map[string]struct {
		args   []string
		object string
		says   string
	}{
		"free":            {[]string{"ovn-default", "10.16.0.60", "--for=scanner"}, "scanner", ""},
		"both families":   {[]string{"ovn-default", "fd00:16::61,10.16.0.61", "--for=scales", "--mac=02-00-00-00-00-01"}, "scales", ""},
		"of a pod":        {[]string{"ovn-default", "10.16.0.62", "--for=web-7", "-n", "shop"}, "web-7.shop", ""},
		"excluded":        {[]string{"ovn-default", "10.16.0.5", "--for=till"}, "till", ""},
		"leased":          {[]string{"ovn-default", "10.16.0.20", "--for=x"}, "", "shop/web-0"},
		"reserved":        {[]string{"ovn-default", "10.16.0.50", "--for=x"}, "", "printer"},
		"gateway":         {[]string{"ovn-default", "10.16.0.1", "--for=x"}, "", "gateway"},
		"outside":         {[]string{"ovn-default", "10.99.0.1", "--for=x"}, "", "10.16.0.0/24"},
		"no such subnet":  {[]string{"nowhere", "10.16.0.63", "--for=x"}, "", "kubectl berth subnets"},
		"broken subnet":   {[]string{"broken", "10.16.0.63", "--for=x"}, "", "nonsense"},
		"name is in use":  {[]string{"ovn-default", "10.16.0.64", "--for=printer"}, "", "already"},
		"MAC of nobody":   {[]string{"ovn-default", "10.16.0.65", "--for=x", "--mac=ff:ff:ff:ff:ff:ff"}, "", "--mac"},
		"one part leased": {[]string{"ovn-default", "10.16.0.66,fd00:16::20", "--for=x"}, "", "fd00:16::20"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := w.run(append([]string{"reserve"}, c.args...)...)
			if c.object == "" {
				if code == ExitFine || !strings.Contains(errs, c.says) {
					t.Errorf("exit code %d; it says %q, want %q", code, errs, c.says)
				}
				if err := w.client.Get(w.ctx, client.ObjectKey{Name: "x"}, &kubeovnv1.IP{}); !apierrors.IsNotFound(err) {
					t.Errorf("an object was made: %v", err)
				}
				return
			}
			if code != ExitFine || !strings.Contains(out, "reserved for "+c.object) {
				t.Fatalf("exit code %d: %s%s", code, out, errs)
			}
			var ip kubeovnv1.IP
			w.must(w.client.Get(w.ctx, client.ObjectKey{Name: c.object}, &ip))
			if len(ip.Finalizers) > 0 || ip.Labels[network.ClaimKey] != "" || ip.Spec.Subnet != c.args[0] {
				t.Errorf("it is no reservation: %+v", ip)
			}
			if code, _, errs := w.run(append([]string{"reserve"}, append(slices.Clone(c.args), "--for=x")...)...); code != ExitError {
				t.Errorf("reserved twice: %s", errs)
			}
		})
	}
	var scales kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "scales"}, &scales))
	want := kubeovnv1.IPSpec{PodName: "scales", Subnet: "ovn-default", IPAddress: "10.16.0.61,fd00:16::61", V4IPAddress: "10.16.0.61", V6IPAddress: "fd00:16::61",
		MacAddress: "02:00:00:00:00:01", AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}
	if d := cmp.Diff(want, scales.Spec); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An address that a pod takes while it is being reserved stays with the pod, and that is said.
func TestReserveTooLate(t *testing.T) {
	w := shop(t)
	var creates atomic.Int32
	w.hear(func(r memkube.Request) {
		if r.Verb != "create" || r.Resource != "ips" {
			return
		}
		creates.Add(1)
		w.hear(nil)
		w.admit(pod("quick", at("10.16.0.80,fd00:16::80")))
	})
	code, out, errs := w.run("reserve", "ovn-default", "10.16.0.80", "--for=slow")
	if code != ExitFine || creates.Load() != 1 || !strings.Contains(out, "10.16.0.80 stays with Pod/shop/ until that ends") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

func TestRelease(t *testing.T) {
	w := shop(t)
	w.create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "node-n1", Labels: map[string]string{"ovn.kubernetes.io/ip_reserved": "false"}},
		Spec: kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.70"}})
	for name, c := range map[string]struct{ address, object, says string }{
		"reservation":      {"10.16.0.50", "printer", ""},
		"record of a pod":  {"10.16.0.30", "gone.shop", "no reservation"},
		"of a node":        {"10.16.0.70", "node-n1", "no reservation"},
		"nobody's":         {"10.16.0.77", "", "kubectl berth who"},
		"leased, reserved": {"10.16.0.20", "", "kubectl berth who"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := w.run("release", "ovn-default", c.address)
			if c.says == "" {
				if code != ExitFine || !strings.Contains(out, "released for "+c.object) {
					t.Errorf("exit code %d: %s%s", code, out, errs)
				}
			} else if code != ExitError || !strings.Contains(errs, c.says) {
				t.Errorf("exit code %d; it says %q, want %q", code, errs, c.says)
			}
			if c.object == "" {
				return
			}
			err := w.client.Get(w.ctx, client.ObjectKey{Name: c.object}, &kubeovnv1.IP{})
			if gone := apierrors.IsNotFound(err); gone != (c.says == "") {
				t.Errorf("object gone: %t", gone)
			}
		})
	}
}

// A reserved address that is lent to a pod stays with the pod, and that is said.
func TestReleaseOfLentAddress(t *testing.T) {
	w := shop(t)
	w.create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "web-5.shop"}, Spec: kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.55"}})
	w.admit(pod("web-5"))
	code, out, errs := w.run("release", "ovn-default", "10.16.0.55")
	if code != ExitFine || !strings.Contains(out, "10.16.0.55 stays with Pod/shop/ until that ends") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

func TestAuditFix(t *testing.T) {
	w := shop(t)
	code, out, errs := w.run("audit", "--settle=0s", "--fix")
	if code != ExitFound {
		t.Errorf("leases are left to the worker, and exit code is %d: %s", code, errs)
	}
	for kind, state := range map[string]string{"finalizer-missing": "fixed", "record-orphaned": "fixed", "lease-orphaned": "found"} {
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, kind) && !strings.HasSuffix(strings.TrimSpace(line), state) {
				t.Errorf("want %s: %s", state, line)
			}
		}
	}
	var first corev1.Pod
	w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: "shop", Name: "first"}, &first))
	if !slices.Contains(first.Finalizers, network.Finalizer) {
		t.Error("the finalizer is not back")
	}
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: "gone.shop"}, &kubeovnv1.IP{}); !apierrors.IsNotFound(err) {
		t.Errorf("the record is still there: %v", err)
	}
	if _, out, _ := w.run("audit", "--settle=0s"); strings.Contains(out, "finalizer-missing") || strings.Contains(out, "record-orphaned") || !strings.Contains(out, "2 findings") {
		t.Errorf("after that: %s", out)
	}
}

// What is found at the first look only is the cluster at work, and no finding.
func TestAuditLooksTwice(t *testing.T) {
	w := shop(t)
	var pods atomic.Int32
	w.hear(func(r memkube.Request) {
		if r.Verb != "list" || r.Resource != "pods" {
			return
		}
		if pods.Add(1) == 2 { // between the looks the finalizer came back
			w.must(w.client.Patch(w.ctx, pod("first"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["berth.dev/network"]}}`))))
		}
	})
	_, out, errs := w.run("audit", "--settle=0s")
	if pods := pods.Load(); pods != 2 || !strings.Contains(out, "lease-orphaned") || strings.Contains(out, "finalizer-missing") {
		t.Errorf("%d looks: %s%s", pods, out, errs)
	}
}

func TestUninstall(t *testing.T) {
	w := shop(t)
	w.install("ensure")
	code, _, errs := w.run("uninstall", "--strip-finalizers", "--yes")
	if code != ExitError || !strings.Contains(errs, "kubectl delete mutatingwebhookconfiguration") || !strings.Contains(errs, "kubectl scale deployment berth-worker") {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	w.stop()
	w.put(pod("both", finalized, func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, "example.com/other") }))
	held := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/other", network.Finalizer}}}
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{network.Finalizer}}}
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{network.Finalizer}}}
	others := []client.Object{held, pool, vip}
	for _, o := range others {
		w.must(w.client.Create(w.ctx, o))
	}
	code, out, errs := w.run("uninstall", "--strip-finalizers", "--yes")
	if code != ExitFine || !strings.Contains(out, "7 of 7 objects") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	for _, o := range others {
		w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(o), o))
		if slices.Contains(o.GetFinalizers(), network.Finalizer) || o == held && len(o.GetFinalizers()) != 1 {
			t.Errorf("%T has finalizers %v", o, o.GetFinalizers())
		}
	}
	var pods corev1.PodList
	w.must(w.client.List(w.ctx, &pods))
	for _, p := range pods.Items {
		if slices.Contains(p.Finalizers, network.Finalizer) || p.Name == "both" && len(p.Finalizers) != 1 {
			t.Errorf("pod %s has finalizers %v", p.Name, p.Finalizers)
		}
	}
	if code, out, errs := w.run("uninstall", "--strip-finalizers", "--yes"); code != ExitFine || !strings.Contains(out, "0 of 0 objects") {
		t.Errorf("a second time: exit code %d: %s%s", code, out, errs)
	}
}

func TestReadOnlyLedgerRefusesWrites(t *testing.T) {
	s := readOnly{}
	if _, err := s.Write(t.Context(), &ipam.Block{Name: "b"}); !errors.Is(err, ipam.ErrRefused) {
		t.Errorf("Write: %v", err)
	}
	if err := s.Delete(t.Context(), &ipam.Block{Name: "b"}); !errors.Is(err, ipam.ErrRefused) {
		t.Errorf("Delete: %v", err)
	}
}
