package report

import "strconv"

// Reservation is what reserve or release did.
type Reservation struct {
	Head
	// Action is reserved or released.
	Action    string   `json:"action"`
	Name      string   `json:"name"`
	Subnet    string   `json:"subnet"`
	Addresses []string `json:"addresses"`
	MAC       string   `json:"mac,omitempty"`
	// Note tells what is still to come.
	Note string `json:"note,omitempty"`
}

// ReservationOf tells what was done.
func ReservationOf(action, name, subnet string, addresses []string, mac, note string) *Reservation {
	return &Reservation{Head: head("Reservation"), Action: action, Name: name, Subnet: subnet, Addresses: addresses, MAC: mac, Note: note}
}

func (r *Reservation) table(w *writer) {
	for _, a := range r.Addresses {
		w.text("%s of subnet %s %s for %s", a, r.Subnet, r.Action, r.Name)
	}
	if r.Note != "" {
		w.text("%s", r.Note)
	}
}

// Uninstall is what uninstall did.
type Uninstall struct {
	Head
	// Objects with the finalizer; Stripped of them have it no more.
	Objects  int      `json:"objects"`
	Stripped int      `json:"stripped"`
	Failed   []string `json:"failed,omitempty"`
}

// UninstallOf tells what was done.
func UninstallOf(objects, stripped int, failed []string) *Uninstall {
	return &Uninstall{Head: head("Uninstall"), Objects: objects, Stripped: stripped, Failed: failed}
}

func (u *Uninstall) table(w *writer) {
	w.text("%s of %s objects with the finalizer have it no more.", strconv.Itoa(u.Stripped), strconv.Itoa(u.Objects))
	for _, f := range u.Failed {
		w.text("%s", f)
	}
}
