package memkube_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/internal/memkube"
)

func next(ctx context.Context, t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "CLOSED"
		}
		if m, ok := e.Object.(metav1.Object); ok {
			return fmt.Sprintf("%s %s", e.Type, m.GetName())
		}
		return string(e.Type)
	case <-ctx.Done():
		t.Fatal("no event")
		return ""
	}
}

func TestWatchEventsAndSelectors(t *testing.T) {
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("old"), metav1.CreateOptions{}))
	list := must[*corev1.PodList](t)(pods.List(ctx, metav1.ListOptions{}))
	all := must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}))
	defer all.Stop()
	selected := must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{LabelSelector: "in=yes", FieldSelector: "spec.nodeName=n1"}))
	defer selected.Stop()

	must[*corev1.Pod](t)(pods.Create(ctx, pod("a", onNode), metav1.CreateOptions{}))
	for _, label := range []string{`"yes"`, `"yes","more":"x"`, `"no"`} {
		must[*corev1.Pod](t)(pods.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"in":`+label+`}}}`), metav1.PatchOptions{}))
	}
	zero := int64(0)
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"all":      {"ADDED a", "MODIFIED a", "MODIFIED a", "MODIFIED a", "MODIFIED a", "DELETED a"},
		"selected": {"ADDED a", "MODIFIED a", "DELETED a"},
	}
	for name, w := range map[string]watch.Interface{"all": all, "selected": selected} {
		var got []string
		for range want[name] {
			got = append(got, next(ctx, t, w))
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWatchListStreamAndBookmarks(t *testing.T) {
	_, cs := start(t, memkube.Options{BookmarkEvery: 20 * time.Millisecond})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))
	yes := true
	w := must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}))
	defer w.Stop()
	if got := next(ctx, t, w); got != "ADDED a" {
		t.Errorf("first %s", got)
	}
	end := (<-w.ResultChan()).Object.(*corev1.Pod)
	if end.Annotations[metav1.InitialEventsAnnotationKey] != "true" || end.ResourceVersion == "" {
		t.Errorf("end of the initial events: %+v", end.ObjectMeta)
	}
	if got := next(ctx, t, w); got != "BOOKMARK " {
		t.Errorf("then %s", got)
	}
	if _, err := pods.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes}); !apierrors.IsInvalid(err) {
		t.Errorf("without resourceVersionMatch: %v", err)
	}
}

func TestWatchEnds(t *testing.T) {
	s, cs := start(t, memkube.Options{History: 4})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	rv := must[*corev1.Pod](t)(pods.Create(ctx, pod("first"), metav1.CreateOptions{})).ResourceVersion
	w := must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{ResourceVersion: rv}))
	s.BreakWatches("pods")
	if got := next(ctx, t, w); got != "CLOSED" {
		t.Errorf("broken watch: %s", got)
	}
	w = must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{ResourceVersion: rv}))
	s.ExpireWatches("pods")
	if got := next(ctx, t, w); got != "ERROR" {
		t.Errorf("expired watch: %s", got)
	}
	for i := range 12 {
		must[*corev1.Pod](t)(pods.Create(ctx, pod(fmt.Sprint("p", i)), metav1.CreateOptions{}))
	}
	if _, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: rv}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from before the history: %v", err)
	}
	short := int64(1)
	w = must[watch.Interface](t)(pods.Watch(ctx, metav1.ListOptions{TimeoutSeconds: &short, LabelSelector: "none=x"}))
	if got := next(ctx, t, w); got != "CLOSED" {
		t.Errorf("timed out watch: %s", got)
	}
}

func TestPauseWatch(t *testing.T) {
	s, cs := start(t, memkube.Options{})
	ctx := within(t)
	resume := s.PauseWatch("pods")
	w := must[watch.Interface](t)(cs.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{}))
	defer w.Stop()
	cm := must[watch.Interface](t)(cs.CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{}))
	defer cm.Stop()
	must[*corev1.Pod](t)(cs.CoreV1().Pods("default").Create(ctx, pod("a"), metav1.CreateOptions{}))
	must[*corev1.ConfigMap](t)(cs.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}))
	if got := next(ctx, t, cm); got != "ADDED c" {
		t.Error(got)
	}
	select {
	case e := <-w.ResultChan():
		t.Errorf("paused watch sent %v", e)
	default:
	}
	resume()
	if got := next(ctx, t, w); got != "ADDED a" {
		t.Error(got)
	}
}

// The informer's store must converge on the server's state through writes, cut watches and expiry.
func TestInformerSurvives(t *testing.T) {
	s, cs := start(t, memkube.Options{})
	ctx := within(t)
	factory := informers.NewSharedInformerFactory(cs, 0)
	informer := factory.Core().V1().Pods().Informer()
	changed := make(chan struct{}, 1000)
	poke := func(any) { changed <- struct{}{} }
	must[cache.ResourceEventHandlerRegistration](t)(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(_, o any) { poke(o) }, DeleteFunc: poke}))
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("not synced")
	}
	pods := cs.CoreV1().Pods("default")
	for i := range 30 {
		must[*corev1.Pod](t)(pods.Create(ctx, pod(fmt.Sprint("p", i)), metav1.CreateOptions{}))
		switch i {
		case 10:
			s.BreakWatches("pods")
		case 20:
			s.ExpireWatches("pods")
		}
		if i%3 == 0 {
			if err := pods.Delete(ctx, fmt.Sprint("p", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := must[*corev1.PodList](t)(pods.List(ctx, metav1.ListOptions{}))
	for len(informer.GetStore().ListKeys()) != len(want.Items) {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("informer has %d, server %d", len(informer.GetStore().ListKeys()), len(want.Items))
		}
	}
	if s.Requests()["watch pods"] < 3 || s.Requests()["create pods"] != 30 {
		t.Errorf("requests %v", s.Requests())
	}
}

func TestMetadataClient(t *testing.T) {
	s, cs := start(t, memkube.Options{})
	ctx := within(t)
	must[*corev1.Pod](t)(cs.CoreV1().Pods("default").Create(ctx, pod("a"), metav1.CreateOptions{}))
	md := must[metadata.Interface](t)(metadata.NewForConfig(s.Config())).Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	list := must[*metav1.PartialObjectMetadataList](t)(md.List(ctx, metav1.ListOptions{}))
	if len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("list %v", list.Items)
	}
	w := must[watch.Interface](t)(md.Watch(ctx, metav1.ListOptions{}))
	defer w.Stop()
	if got := next(ctx, t, w); got != "ADDED a" {
		t.Error(got)
	}
}

func TestFaults(t *testing.T) {
	var mode atomic.Value
	mode.Store(memkube.Fault{})
	s, _ := start(t, memkube.Options{Intercept: func(r memkube.Request) memkube.Fault {
		if r.Verb == "create" && r.Resource == "pods" {
			return mode.Load().(memkube.Fault)
		}
		return memkube.Fault{}
	}})
	ctx := within(t)
	cs := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(s.Config()))
	pods := cs.CoreV1().Pods("default")
	held := make(chan struct{})
	cases := map[string]struct {
		fault  memkube.Fault
		stored bool
		ok     func(error) bool
	}{
		"conflict": {fault: memkube.Fault{Err: apierrors.NewTooManyRequestsError("slow")}, ok: apierrors.IsTooManyRequests},
		"abort":    {fault: memkube.Fault{Err: memkube.ErrAbort}, ok: func(err error) bool { return err != nil && apierrors.ReasonForError(err) == "" }},
		"dropped":  {fault: memkube.Fault{DropAnswer: true}, stored: true, ok: func(err error) bool { return err != nil && apierrors.ReasonForError(err) == "" }},
		"delayed":  {fault: memkube.Fault{Delay: time.Millisecond}, stored: true, ok: func(err error) bool { return err == nil }},
		"held":     {fault: memkube.Fault{Hold: held}, stored: true, ok: func(err error) bool { return err == nil }},
	}
	close(held)
	for name, c := range cases {
		mode.Store(c.fault)
		_, err := pods.Create(ctx, pod(name), metav1.CreateOptions{})
		if !c.ok(err) {
			t.Errorf("%s: %T %v", name, err, err)
		}
		if _, err := pods.Get(ctx, name, metav1.GetOptions{}); (err == nil) != c.stored {
			t.Errorf("%s: stored %v", name, err == nil)
		}
	}
}
