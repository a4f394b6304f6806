package chart

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/berth-net/berth/tools/ship/render"
)

// systemNamespace is where kustomize puts Berth; a chart is put where its user says.
const systemNamespace = "berth-system"

// Words that stand for templates until all is YAML: plain words, so that YAML leaves them alone.
const (
	wordNamespace = "TEMPLATENAMESPACE"
	wordValue     = "TEMPLATEVALUE-%s-END"
	wordBlock     = "TEMPLATEBLOCK-%s-END"
)

func value(path string) string { return fmt.Sprintf(wordValue, path) }

func block(path string) string { return fmt.Sprintf(wordBlock, path) }

// programs are the Deployments, and the part of the values that is theirs.
func programs() map[string]string {
	return map[string]string{"berth-webhook": "webhook", "berth-worker": "worker"}
}

// arguments of the programs that are values.
func arguments() map[string]string {
	return map[string]string{
		"--default-ls=":     "network.defaultSubnet",
		"--cluster-router=": "network.clusterRouter",
		"--node-switch=":    "network.nodeSwitch",
		"--pod-nic-type=":   "network.podNicType",
		"--ovn-nb-addr=":    "northbound.address",
	}
}

// parametrise puts words for templates where an object has what is a value of the chart.
func parametrise(o render.Object) error {
	namespaced(map[string]any(o))
	switch o.Kind() {
	case "Deployment":
		return deployment(o)
	case "MutatingWebhookConfiguration":
		return podFailurePolicy(o)
	case "CustomResourceDefinition":
		keep(o)
	}
	return nil
}

// podWebhook is the webhook whose failurePolicy is the chart's. Those of bindings have theirs for reasons of their own.
const podWebhook = "pod.berth.dev"

func podFailurePolicy(o render.Object) error {
	hooks, _ := o["webhooks"].([]any)
	for _, h := range hooks {
		if hook := h.(map[string]any); hook["name"] == podWebhook {
			hook["failurePolicy"] = value("failurePolicy")
			return nil
		}
	}
	return fmt.Errorf("%s has no webhook %s", o.Key(), podWebhook)
}

// keep has Helm leave a kind alone when the chart is removed: the ledger would go with it.
func keep(o render.Object) {
	meta := o["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
		meta["annotations"] = annotations
	}
	annotations[KeepAnnotation] = "keep"
}

// KeepAnnotation is the one thing that the chart's objects have and kustomize's have not.
const KeepAnnotation = "helm.sh/resource-policy"

// namespaced replaces the namespace in all texts below a place.
func namespaced(at any) any {
	switch v := at.(type) {
	case string:
		return strings.ReplaceAll(v, systemNamespace, wordNamespace)
	case map[string]any:
		for k := range v {
			v[k] = namespaced(v[k])
		}
	case []any:
		for n := range v {
			v[n] = namespaced(v[n])
		}
	}
	return at
}

func deployment(o render.Object) error {
	part := programs()[o.Name()]
	if part == "" {
		return fmt.Errorf("%s is no program that the chart knows", o.Key())
	}
	spec := o["spec"].(map[string]any)
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	containers, _ := pod["containers"].([]any)
	if len(containers) != 1 {
		return fmt.Errorf("%s has %d containers, the chart knows one", o.Key(), len(containers))
	}
	spec["replicas"] = value(part + ".replicas")
	pod["priorityClassName"] = value("priorityClassName")
	c := containers[0].(map[string]any)
	c["image"] = value("image.repository") + ":" + value("image.tag")
	c["imagePullPolicy"] = value("image.pullPolicy")
	c["resources"] = block(part + ".resources")
	args, _ := c["args"].([]any)
	for n := range args {
		flag, _, _ := strings.Cut(args[n].(string), "=")
		if path := arguments()[flag+"="]; path != "" {
			args[n] = flag + "=" + value(path)
		}
	}
	return nil
}

// templated turns YAML with words into a template. What looks like a template already is not one.
func templated(text string) string {
	text = strings.ReplaceAll(text, "{{", `{{ "{{" }}`)
	text = strings.ReplaceAll(text, wordNamespace, "{{ .Release.Namespace }}")
	text = regexp.MustCompile(`(?m)^( *)(.*): TEMPLATEBLOCK-(.*)-END$`).ReplaceAllStringFunc(text, func(line string) string {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		key, path, _ := strings.Cut(strings.TrimSpace(line), ": TEMPLATEBLOCK-")
		return fmt.Sprintf("%s%s: {{- toYaml .Values.%s | nindent %d }}", strings.Repeat(" ", indent), key, strings.TrimSuffix(path, "-END"), indent+2)
	})
	return regexp.MustCompile(`TEMPLATEVALUE-([a-zA-Z.]+)-END`).ReplaceAllString(text, "{{ .Values.$1 }}")
}
