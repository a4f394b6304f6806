package web_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-net/berth/internal/web"
)

// apiServer answers reviews: of the token "good" the user may look, of "other" not, others it doesn't know.
type apiServer struct {
	mu     sync.Mutex
	asked  map[string]int
	access authorizationv1.SubjectAccessReviewSpec
	down   bool
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	a.asked[kind]++
	if a.down {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	codec := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})
	switch kind {
	case "tokenreviews":
		var review authenticationv1.TokenReview
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		token := decode(r)
		if token == "good" || token == "other" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: token, UID: "u",
				Groups: []string{"viewers"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}}
		}
		_ = codec.Encode(&review, w)
	case "subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		_, _, _ = codec.Decode(body(r), nil, &review)
		a.access = review.Spec
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
		review.Status.Allowed = review.Spec.User == "good"
		_ = codec.Encode(&review, w)
	default:
		http.NotFound(w, r)
	}
}

func body(r *http.Request) []byte {
	raw := make([]byte, r.ContentLength)
	_, _ = r.Body.Read(raw)
	return raw
}

func decode(r *http.Request) string {
	var review authenticationv1.TokenReview
	codec := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{})
	_, _, _ = codec.Decode(body(r), nil, &review)
	return review.Spec.Token
}

func newReviewer(t *testing.T) (*apiServer, *web.Reviewer, *clocktesting.FakePassiveClock) {
	t.Helper()
	a := &apiServer{asked: map[string]int{}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	g, err := web.NewReviewer(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, clk)
	if err != nil {
		t.Fatal(err)
	}
	return a, g, clk
}

func admit(g *web.Reviewer, header string) error {
	r := httptest.NewRequest(http.MethodGet, web.Path+"/api/state", nil)
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	return g.Admit(r)
}

// The API server decides: who is known and may get the path looks, and nobody else.
func TestReviewer(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		want   error
	}{
		"nothing":       {"", web.ErrStranger},
		"no bearer":     {"Basic good", web.ErrStranger},
		"empty":         {"Bearer ", web.ErrStranger},
		"endless":       {"Bearer " + strings.Repeat("a", 20<<10), web.ErrStranger},
		"unknown":       {"Bearer bad", web.ErrStranger},
		"not allowed":   {"Bearer other", web.ErrDenied},
		"allowed":       {"Bearer good", nil},
		"in lower case": {"bearer good", nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newReviewer(t)
			if err := admit(g, c.header); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if c.want != nil && a.asked["subjectaccessreviews"] > 0 && !errors.Is(c.want, web.ErrDenied) {
				t.Error("asked what a stranger may do")
			}
			if c.want == nil {
				want := authorizationv1.SubjectAccessReviewSpec{User: "good", UID: "u", Groups: []string{"viewers"},
					Extra:                 map[string]authorizationv1.ExtraValue{"k": {"v"}},
					NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/berth", Verb: "get"}}
				if d := cmp.Diff(want, a.access); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// An answer is believed for a minute, a refusal for ten seconds; without an answer nobody is let in.
func TestReviewerRemembers(t *testing.T) {
	a, g, clk := newReviewer(t)
	for _, step := range []struct {
		token string
		after time.Duration
		down  bool
		asked int
		good  bool
	}{
		{"good", 0, false, 1, true}, {"good", 59 * time.Second, true, 1, true}, {"good", 2 * time.Second, true, 2, false}, {"good", 0, false, 3, true},
		{"bad", 0, false, 4, false}, {"bad", 9 * time.Second, false, 4, false}, {"bad", 2 * time.Second, false, 5, false},
	} {
		clk.SetTime(clk.Now().Add(step.after))
		a.mu.Lock()
		a.down = step.down
		a.mu.Unlock()
		err := admit(g, "Bearer "+step.token)
		if (err == nil) != step.good || a.asked["tokenreviews"] != step.asked {
			t.Errorf("%+v: %v after %d questions", step, err, a.asked["tokenreviews"])
		}
		if step.down && !step.good && (errors.Is(err, web.ErrStranger) || errors.Is(err, web.ErrDenied)) {
			t.Errorf("an API server that is down is taken for a refusal: %v", err)
		}
	}
}

// Many with one token ask once.
func TestReviewerAsksOnce(t *testing.T) {
	a, g, _ := newReviewer(t)
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if err := admit(g, "Bearer good"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if a.asked["tokenreviews"] != 1 || a.asked["subjectaccessreviews"] != 1 {
		t.Errorf("asked %v", a.asked)
	}
}
