package bench

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// auditPolicy has the API server note every write but leases', by whom, with nothing of its content.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - group: coordination.k8s.io
- level: None
  resources:
  - group: authentication.k8s.io
  - group: authorization.k8s.io
- level: Metadata
`

// Authors of writes, as reports name them.
const (
	authorBench   = "bench"
	authorWebhook = "webhook"
	authorWorker  = "worker"
)

// Write is one kind of write, and how often it was done.
type Write struct {
	Author   string `json:"author"`
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	// Failed are those that the API server refused, a conflict say; they are not in Count.
	Failed int `json:"failed,omitempty"`
}

// auditEvent is what is read of an entry of the API server's audit log.
type auditEvent struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// ParseAudit counts the writes of an audit log, dry runs left away. The last line may be one that is being written: it is
// left for the next time. It gives how many bytes were read.
func ParseAudit(log io.Reader) (writes []Write, read int64, err error) {
	counts := map[Write]*Write{}
	in := bufio.NewReaderSize(log, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read the audit log: %w", err)
		}
		read += int64(len(line))
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, 0, fmt.Errorf("the audit log has a line that can't be read: %w", err)
		}
		if strings.Contains(e.RequestURI, "dryRun=") {
			continue
		}
		key := Write{Author: author(e), Verb: e.Verb, Resource: strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")}
		w := counts[key]
		if w == nil {
			w = &Write{Author: key.Author, Verb: key.Verb, Resource: key.Resource}
			counts[key] = w
		}
		if e.ResponseStatus.Code < 300 {
			w.Count++
		} else {
			w.Failed++
		}
	}
	for _, w := range counts {
		writes = append(writes, *w)
	}
	slices.SortFunc(writes, func(a, b Write) int {
		return cmp.Or(cmp.Compare(a.Author, b.Author), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
	})
	return writes, read, nil
}

// author tells who wrote: the account of our programs, else the client's name.
func author(e auditEvent) string {
	if account, ok := strings.CutPrefix(e.User.Username, "system:serviceaccount:"+systemNamespace+":berth-"); ok {
		return account
	}
	name, _, _ := strings.Cut(e.UserAgent, "/")
	return name
}

// auditLog is an audit log that is read bit by bit.
type auditLog struct {
	path string
	at   int64
}

// next counts the writes since it was asked last.
func (l *auditLog) next() ([]Write, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, fmt.Errorf("open the API server's audit log: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(l.at, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the API server's audit log: %w", err)
	}
	writes, read, err := ParseAudit(f)
	l.at += read
	return writes, err
}

// by counts the writes of some authors.
func by(writes []Write, keep func(Write) bool) int {
	n := 0
	for _, w := range writes {
		if keep(w) {
			n += w.Count
		}
	}
	return n
}

// ours tells whether Berth wrote.
func ours(w Write) bool { return w.Author == authorWebhook || w.Author == authorWorker }

// oursWithoutRecords leaves the IP records away.
func oursWithoutRecords(w Write) bool { return ours(w) && w.Resource != "ips" }
