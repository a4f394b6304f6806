package app

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Of a flag that is given twice the last counts, as it does for the program that is started so.
func TestLastArgumentCounts(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"none":    {nil, ""},
		"once":    {[]string{"--topology=ensure"}, "ensure"},
		"twice":   {[]string{"--topology=ensure", "--topology=external"}, "external"},
		"as word": {[]string{"--topology=ensure", "--topology", "external"}, "external"},
		"another": {[]string{"--topology-x=ensure"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := argument(deployment("berth-system", workerName, 1, c.args...), "topology"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// What becomes of pods while no webhook answers is told of the webhook for pods, and of none for bindings.
func TestStatusTellsPolicyForPods(t *testing.T) {
	w := shop(t)
	w.install("ensure")
	var hooks admissionv1.MutatingWebhookConfiguration
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: webhookName}, &hooks))
	fail, binding := admissionv1.Fail, hooks.Webhooks[0].DeepCopy()
	hooks.Webhooks[0].FailurePolicy = &fail
	binding.Name = "bind.berth.dev" // it ignores failures
	hooks.Webhooks = append(hooks.Webhooks, *binding)
	w.must(w.client.Update(w.ctx, &hooks))
	if code, out, errs := w.run("status"); code != ExitFine || !strings.Contains(out, "failurePolicy: Fail\n") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
