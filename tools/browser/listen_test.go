package browser

import (
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
)

// listener notes what the browser complains about: exceptions, and whatever the page's policy forbids. That a wrong token
// is refused is no complaint.
func listener(to *[]string) func(any) {
	return func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			*to = append(*to, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if !strings.Contains(e.Entry.Text, "401") {
				*to = append(*to, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
			}
		}
	}
}
