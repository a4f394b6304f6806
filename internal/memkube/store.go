package memkube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// record is one stored version of one object. It never changes: a write makes another record.
type record struct {
	obj map[string]any
	raw []byte
	rv  uint64
}

func (r *record) meta() *unstructured.Unstructured { return &unstructured.Unstructured{Object: r.obj} }

// event is one change of one table. now is the object after it (for a deletion: at it), before is nil for a creation.
type event struct {
	rv          uint64
	deleted     bool
	now, before *record
}

// table holds the objects of one kind and their latest events.
type table struct {
	kind  Kind
	items map[string]*record
	// events are those after floor, in the order of their resourceVersions.
	events []event
	floor  uint64
	// epoch rises when all watches are to end.
	epoch int
	// wake is closed, and replaced, at every change of the table; gate, when not nil, holds events back.
	wake chan struct{}
	gate chan struct{}
}

// store is the whole state. One lock and one counter order all writes, so resourceVersions compare across kinds.
type store struct {
	mu      sync.RWMutex
	rv      uint64
	history int
	tables  map[schema.GroupVersionResource]*table
}

func newStore(kinds []Kind, history int) *store {
	s := &store{rv: 1, history: history, tables: map[schema.GroupVersionResource]*table{}}
	for _, k := range kinds {
		s.tables[k.gvr()] = &table{kind: k, items: map[string]*record{}, wake: make(chan struct{}), floor: s.rv}
	}
	return s
}

func objectKey(namespace, name string) string { return namespace + "/" + name }

// get returns the stored object or nil.
func (s *store) get(t *table, namespace, name string) *record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return t.items[objectKey(namespace, name)]
}

// list returns what a namespace (empty: all) holds, in the order of the keys, and the version that this is the state of.
func (s *store) list(t *table, namespace string) ([]*record, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return t.list(namespace), s.rv
}

func (t *table) list(namespace string) []*record {
	keys := make([]string, 0, len(t.items))
	for k := range t.items {
		if namespace == "" || strings.HasPrefix(k, namespace+"/") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out := make([]*record, len(keys))
	for i, k := range keys {
		out[i] = t.items[k]
	}
	return out
}

// put stores an object under the next version; the caller holds the lock. Storing what is already there changes nothing.
func (s *store) put(t *table, obj map[string]any) (*record, error) {
	u := &unstructured.Unstructured{Object: obj}
	key := objectKey(u.GetNamespace(), u.GetName())
	before := t.items[key]
	if before != nil {
		u.SetResourceVersion(before.meta().GetResourceVersion())
		if raw, err := json.Marshal(obj); err == nil && string(raw) == string(before.raw) {
			return before, nil
		}
	}
	now, err := newRecord(obj, s.rv+1)
	if err != nil {
		return nil, err
	}
	s.rv++
	t.items[key] = now
	s.log(t, event{rv: now.rv, now: now, before: before})
	return now, nil
}

// remove deletes an object; the caller holds the lock. The returned record carries the version of the deletion.
func (s *store) remove(t *table, before *record) (*record, error) {
	u := before.meta()
	now, err := newRecord(u.DeepCopy().Object, s.rv+1)
	if err != nil {
		return nil, err
	}
	s.rv++
	delete(t.items, objectKey(u.GetNamespace(), u.GetName()))
	s.log(t, event{rv: now.rv, deleted: true, now: now, before: before})
	return now, nil
}

func newRecord(obj map[string]any, rv uint64) (*record, error) {
	(&unstructured.Unstructured{Object: obj}).SetResourceVersion(strconv.FormatUint(rv, 10))
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("object can't be stored as JSON, send one that can: %w", err)
	}
	return &record{obj: obj, raw: raw, rv: rv}, nil
}

func (s *store) log(t *table, e event) {
	t.events = append(t.events, e)
	if over := len(t.events) - s.history; over > s.history/4 {
		t.floor = t.events[over-1].rv
		t.events = slices.Clone(t.events[over:])
	}
	t.broadcast()
}

func (t *table) broadcast() {
	close(t.wake)
	t.wake = make(chan struct{})
}

// since returns the events after a version, whether the history reaches back that far, and channels: the one that
// closes at the next change, and the one to wait for before anything is delivered (nil: none).
func (s *store) since(t *table, rv uint64) (events []event, ok bool, wake, gate chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if rv < t.floor {
		return nil, false, t.wake, t.gate
	}
	i, _ := slices.BinarySearchFunc(t.events, rv+1, func(e event, v uint64) int {
		switch {
		case e.rv < v:
			return -1
		case e.rv > v:
			return 1
		}
		return 0
	})
	return t.events[i:len(t.events):len(t.events)], true, t.wake, t.gate
}
