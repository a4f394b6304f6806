package admission

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An answer repeats what was asked, and goes to users, logs and events: of much it tells a part.
const (
	toldReasons = 16
	toldBytes   = 1 << 10
	toldMessage = 8 << 10
)

// bound shortens what is too long for anybody to read.
func (d *decision) bound() {
	if more := len(d.warnings) - toldReasons; more > 0 {
		d.warnings = append(d.warnings[:toldReasons:toldReasons], fmt.Sprintf("and %d more", more))
	}
	for i, w := range d.warnings {
		d.warnings[i] = ends(w, toldBytes)
	}
	if d.status == nil {
		return
	}
	d.status.Message = ends(d.status.Message, toldMessage)
	details := d.status.Details
	details.Name = ends(details.Name, toldBytes)
	if more := len(details.Causes) - toldReasons; more > 0 {
		details.Causes = append(details.Causes[:toldReasons:toldReasons], metav1.StatusCause{Message: fmt.Sprintf("and %d more", more)})
	}
	for i, c := range details.Causes {
		details.Causes[i].Message, details.Causes[i].Field = ends(c.Message, toldBytes), ends(c.Field, toldBytes)
	}
}

// ends gives a text, or the ends of a long one: what is wrong stands at its beginning, what to do at its end.
func ends(text string, most int) string {
	if len(text) <= most {
		return text
	}
	half := most / 2
	return strings.ToValidUTF8(text[:half], "") + " ... " + strings.ToValidUTF8(text[len(text)-half:], "")
}
