package jsonpatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

func TestAt(t *testing.T) {
	if got := At(Annotations, "a.b/c~d"); got != "/metadata/annotations/a.b~1c~0d" {
		t.Error(got)
	}
}

func apply(t interface{ Fatal(...any) }, doc any, ops []Operation) map[string]any {
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = patch.Apply(raw); err != nil {
		t.Fatal(err, string(body))
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Whatever there is becomes what is wanted, or at least has it, and what differs alone is touched.
func TestSetAndFill(t *testing.T) {
	words := rapid.MapOf(rapid.SampledFrom([]string{"a", "b/c", "d~e", "f~1g", ""}), rapid.SampledFrom([]string{"", "1", "2"}))
	rapid.Check(t, func(t *rapid.T) {
		have, want := words.Draw(t, "have"), words.Draw(t, "want")
		doc := map[string]any{}
		if rapid.Bool().Draw(t, "absent") {
			have = nil
		} else {
			doc["m"] = have
		}
		for name, c := range map[string]struct {
			ops  []Operation
			want map[string]any
		}{"set": {Set("/m", have, want), merged(want)}, "fill": {Fill("/m", have, want), merged(want, have)}} {
			got, _ := apply(t, doc, c.ops)["m"].(map[string]any)
			if got == nil {
				got = map[string]any{}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Fatalf("%s: %s", name, d)
			}
		}
		if same := Set("/m", have, have); len(same) > 0 {
			t.Fatalf("nothing to change, and %v", same)
		}
	})
}

// merged gives the maps in one: later ones win.
func merged(maps ...map[string]string) map[string]any {
	out := map[string]any{}
	for _, m := range maps {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func TestAppend(t *testing.T) {
	for name, c := range map[string]struct {
		doc  map[string]any
		has  bool
		want []any
	}{
		"absent": {map[string]any{}, false, []any{"x"}},
		"null":   {map[string]any{"l": nil}, false, []any{"x"}},
		"empty":  {map[string]any{"l": []any{}}, true, []any{"x"}},
		"others": {map[string]any{"l": []any{"a"}}, true, []any{"a", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := apply(t, c.doc, []Operation{Append("/l", c.has, "x")})
			if d := cmp.Diff(any(c.want), got["l"]); d != "" {
				t.Error(d)
			}
		})
	}
}

// Each operation has the form of RFC 6902, in an order that is always the same.
func TestForm(t *testing.T) {
	ops := append(Set(Annotations, map[string]string{"gone": "", "same": "1", "x/~y": "1"}, map[string]string{"same": "1", "x/~y": "2", "new/k": ""}),
		Append(Finalizers, true, "f"), Test(UID, "u"))
	got, err := json.Marshal(ops)
	want := `[{"op":"add","path":"/metadata/annotations/new~1k","value":""},{"op":"replace","path":"/metadata/annotations/x~1~0y","value":"2"},` +
		`{"op":"remove","path":"/metadata/annotations/gone"},{"op":"add","path":"/metadata/finalizers/-","value":"f"},{"op":"test","path":"/metadata/uid","value":"u"}]`
	if d := cmp.Diff(want, string(got)); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestOutdated(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	causes := field.ErrorList{field.Forbidden(field.NewPath("metadata"), "no")}
	cases := map[string]struct {
		err  error
		want bool
	}{
		"a failed test":     {apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing path /a", 0, false), true},
		"it, wrapped":       {fmt.Errorf("patch: %w", apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)), true},
		"an invalid object": {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", causes), false},
		"a policy":          {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), false},
		"a conflict":        {apierrors.NewConflict(pods, "a", nil), false},
		"it is gone":        {apierrors.NewNotFound(pods, "a"), false},
		"a network":         {errors.New("broken"), false},
		"nothing":           {nil, false},
	}
	for name, c := range cases {
		if got := Outdated(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
