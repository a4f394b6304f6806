package node

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// EnvError is a variable that this agent can't fill.
type EnvError struct{ Name, Problem string }

// Error names the variable.
func (e *EnvError) Error() string {
	return fmt.Sprintf("environment variable %s: %s; give it a plain value or a field of the pod", e.Name, e.Problem)
}

// Env returns a container's variables in order, as NAME=value, with the pod's fields filled in and $(NAME) replaced by
// variables defined before. Optional references that are not supported here are left out.
func Env(pod *corev1.Pod, c *corev1.Container) ([]string, error) {
	known := map[string]string{}
	var out []string
	for _, e := range c.Env {
		value := Expand(e.Value, known)
		if src := e.ValueFrom; src != nil {
			switch {
			case src.FieldRef != nil:
				v, err := podField(pod, src.FieldRef.FieldPath)
				if err != nil {
					return nil, &EnvError{e.Name, err.Error()}
				}
				value = v
			case src.SecretKeyRef != nil && optional(src.SecretKeyRef.Optional),
				src.ConfigMapKeyRef != nil && optional(src.ConfigMapKeyRef.Optional):
				continue
			default:
				return nil, &EnvError{e.Name, "this kind of reference is not supported"}
			}
		}
		known[e.Name] = value
		out = append(out, e.Name+"="+value)
	}
	return out, nil
}

// Args returns the program's arguments: what follows the first word of the command, then the arguments, expanded.
func Args(c *corev1.Container, env []string) []string {
	known := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		known[name] = value
	}
	words := c.Args
	if len(c.Command) > 1 {
		words = append(append([]string{}, c.Command[1:]...), c.Args...)
	}
	out := make([]string, len(words))
	for n, w := range words {
		out[n] = Expand(w, known)
	}
	return out
}

func optional(b *bool) bool { return b != nil && *b }

// Expand replaces $(NAME) by a known variable. An unknown one stays as it is, and $$ stands for one dollar sign.
func Expand(text string, known map[string]string) string {
	var out strings.Builder
	for {
		at := strings.IndexByte(text, '$')
		if at < 0 || at == len(text)-1 {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:at])
		rest := text[at+1:]
		switch end := strings.IndexByte(rest, ')'); {
		case rest[0] == '$':
			out.WriteByte('$')
			text = rest[1:]
		case rest[0] == '(' && end > 0:
			if value, ok := known[rest[1:end]]; ok {
				out.WriteString(value)
			} else {
				out.WriteString("$" + rest[:end+1])
			}
			text = rest[end+1:]
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// podField reads one field of the downward API.
func podField(pod *corev1.Pod, path string) (string, error) {
	if key, ok := quotedKey(path, "metadata.annotations"); ok {
		return pod.Annotations[key], nil
	}
	if key, ok := quotedKey(path, "metadata.labels"); ok {
		return pod.Labels[key], nil
	}
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	fields := map[string]string{
		"metadata.name":           pod.Name,
		"metadata.namespace":      pod.Namespace,
		"metadata.uid":            string(pod.UID),
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.serviceAccountName": cmp.Or(pod.Spec.ServiceAccountName, "default"),
		"status.podIP":            pod.Status.PodIP,
		"status.podIPs":           strings.Join(ips, ","),
		"status.hostIP":           pod.Status.HostIP,
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("field %q of a pod is not known", path)
	}
	return value, nil
}

// quotedKey takes key out of prefix['key'].
func quotedKey(path, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}
