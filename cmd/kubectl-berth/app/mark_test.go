package app

import (
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// A worker that runs writes the records of pods as soon as these are marked, and Kube-OVN's controller those that it gets
// back: neither stops a migration.
func TestRecordsChangeMeanwhile(t *testing.T) {
	w := stock(t)
	var touched sync.Map
	touch := func(r memkube.Request) {
		if r.Verb != "patch" || r.Resource != "ips" {
			return
		}
		if _, again := touched.LoadOrStore(r.Name, true); again {
			return
		}
		var ip kubeovnv1.IP
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: r.Name}, &ip))
		if ip.Annotations == nil {
			ip.Annotations = map[string]string{}
		}
		ip.Annotations["touched"] += "x"
		w.must(w.client.Update(w.ctx, &ip))
	}
	w.hear(touch)
	if code, out, errs := w.run("adopt", "--all", "--fence"); code != ExitFine {
		t.Fatalf("exit code %d: %s%s", code, out[max(0, len(out)-500):], errs)
	}
	w.adopted()
	w.unlabel()
	w.halt()
	touched.Clear()
	if code, out, errs := w.run("handback", "--all"); code != ExitFine {
		t.Fatalf("exit code %d: %s%s", code, out[max(0, len(out)-500):], errs)
	}
	w.hear(nil)
	w.returned()
	var ips kubeovnv1.IPList
	w.must(w.client.List(w.ctx, &ips))
	twice := 0
	for _, ip := range ips.Items {
		if strings.Count(ip.Annotations["touched"], "x") == 2 {
			twice++
		}
	}
	if twice < 200 {
		t.Errorf("only %d records were touched twice", twice)
	}
}

// A record that has another address by now is another's business.
func TestRecordIsAnotherMeanwhile(t *testing.T) {
	w := stock(t)
	var once sync.Once
	w.hear(func(r memkube.Request) {
		if r.Verb == "patch" && r.Resource == "ips" && r.Name == "web-100.shop" {
			once.Do(func() {
				var ip kubeovnv1.IP
				w.must(w.client.Get(w.ctx, client.ObjectKey{Name: r.Name}, &ip))
				ip.Spec.IPAddress = "10.20.1.250"
				w.must(w.client.Update(w.ctx, &ip))
			})
		}
	})
	if code, out, errs := w.run("adopt", "--all", "-o", "json"); code != ExitError || !strings.Contains(out, "IP web-100.shop has changed meanwhile") {
		t.Errorf("exit code %d: %s%s", code, out[max(0, len(out)-500):], errs)
	}
}
