//go:build !faultpoint

package fault

// Hit is where the worker may be told to die.
func Hit(Point) {}
