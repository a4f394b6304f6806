//go:build e2e

package packets

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/e2e/proc"
)

// patience is how long one packet may take there and back; the second of it is what silence costs.
const patience = time.Second

var errSilence = errors.New("silence")

// within runs a function in a network namespace. Sockets stay in it when the function is over.
func within(netns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread, which is elsewhere now, ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// All but the first thread. By that one the kernel says where the process is, and whoever ends a pod's
			// namespace kills who is in it.
			defer runtime.UnlockOSThread()
			done <- within(netns, f)
			return
		}
		fd, err := unix.Open("/run/netns/"+netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err != nil {
			done <- fmt.Errorf("enter %s: %w", netns, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// inside runs a program in the place's network.
func (p *place) inside(ctx context.Context, t *testing.T, line string, args ...any) {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(line, args...))
	if _, err := proc.Run(ctx, "", "nsenter", append([]string{"--net=/run/netns/" + p.netns}, words...)...); err != nil {
		t.Fatal(err)
	}
}

// ping sends one echo request.
func (p *place) ping(ctx context.Context, to netip.Addr) error {
	_, err := proc.Run(ctx, "", "nsenter", "--net=/run/netns/"+p.netns, "ping", "-n", "-q", "-c", "1", "-W", "1", to.String())
	return err
}

// reaches expects answers from every address.
func (p *place) reaches(ctx context.Context, t *testing.T, to ...netip.Addr) {
	t.Helper()
	for _, a := range to {
		until(ctx, t, fmt.Sprintf("%s reaches %s", p.name, a), func(ctx context.Context) error { return p.ping(ctx, a) })
	}
}

// neverReaches expects silence: of what has never been reached, or stays away.
func (p *place) neverReaches(ctx context.Context, t *testing.T, to ...netip.Addr) {
	t.Helper()
	var pings sync.WaitGroup
	for _, a := range to {
		pings.Go(func() {
			for range 2 {
				if p.ping(ctx, a) == nil {
					t.Errorf("%s reaches %s", p.name, a)
					return
				}
			}
		})
	}
	pings.Wait()
}

// loses waits until there is silence.
func (p *place) loses(ctx context.Context, t *testing.T, what string, try func() error) {
	t.Helper()
	until(ctx, t, fmt.Sprintf("%s reaches %s no more", p.name, what), func(context.Context) error {
		if try() == nil {
			return errors.New("it still does")
		}
		return nil
	})
}

// serve answers on a port, by TCP and UDP, with the place's name and the address that the question came from.
func (p *place) serve(t *testing.T, port uint16) {
	t.Helper()
	err := within(p.netns, func() error {
		at := fmt.Sprintf(":%d", port)
		tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = tcp.Close() })
		udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = udp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, p.name+" "+hostOf(c.RemoteAddr()))
				_ = c.Close()
			}
		}()
		go func() {
			for buf := make([]byte, 64); ; {
				_, from, err := udp.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = udp.WriteTo([]byte(p.name+" "+hostOf(from)), from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func hostOf(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return ap.Addr().Unmap().String()
}

// ask asks who answers at an address, by tcp or udp, and what address the question came from.
func (p *place) ask(ctx context.Context, network string, to netip.Addr, port uint16) (who, from string, err error) {
	err = within(p.netns, func() error {
		c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, network, netip.AddrPortFrom(to, port).String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := io.WriteString(c, "who?"); err != nil {
				return err
			}
		}
		buf := make([]byte, 128)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		who, from, _ = strings.Cut(string(buf[:n]), " ")
		return nil
	})
	return who, from, err
}

// hears expects that one of the place's name answers.
func (p *place) hears(ctx context.Context, t *testing.T, network string, to netip.Addr, port uint16, name string) (from string) {
	t.Helper()
	until(ctx, t, fmt.Sprintf("%s hears %s at %s %s:%d", p.name, name, network, to, port), func(ctx context.Context) error {
		who, seen, err := p.ask(ctx, network, to, port)
		from = seen
		if err == nil && who != name {
			return fmt.Errorf("%s answers", who)
		}
		return err
	})
	return from
}

// ear notes which marked frames arrive at a place's eth0, also those for others.
type ear struct {
	place *place
	mu    sync.Mutex
	got   []string
}

// mark begins the payload of frames that ears look for; a semicolon ends it.
const mark = "berth-e2e:"

func (p *place) listen(t *testing.T) *ear {
	t.Helper()
	e := &ear{place: p}
	err := within(p.netns, func() error {
		fd, err := packetSocket()
		if err != nil {
			return err
		}
		var stopped sync.WaitGroup
		stop := make(chan struct{})
		stopped.Go(func() { e.run(fd, stop) })
		t.Cleanup(func() {
			close(stop)
			stopped.Wait()
			_ = unix.Close(fd)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// packetSocket sends and hears whole frames at eth0.
func packetSocket() (int, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return -1, err
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in the network's order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, err
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

func (e *ear) run(fd int, stop <-chan struct{}) {
	buf := make([]byte, 2048)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			continue // mostly that nothing came in time
		}
		_, rest, ok := bytes.Cut(buf[:n], []byte(mark))
		word, _, ended := bytes.Cut(rest, []byte(";"))
		if ok && ended {
			e.mu.Lock()
			e.got = append(e.got, string(word))
			e.mu.Unlock()
		}
	}
}

func (e *ear) heard(word string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.got, word)
}

// await sends a frame until it is heard. What was sent before it on the same way has been heard then, or never will be.
func (e *ear) await(ctx context.Context, t *testing.T, from *place, f frame) {
	t.Helper()
	until(ctx, t, fmt.Sprintf("%s hears %q from %s", e.place.name, f.word, from.name), func(context.Context) error {
		from.send(t, f)
		if e.heard(f.word) {
			return nil
		}
		return errSilence
	})
}

// send sends a frame from the place's eth0.
func (p *place) send(t *testing.T, f frame) {
	t.Helper()
	p.sendRaw(t, f.bytes())
}

func (p *place) sendRaw(t *testing.T, b []byte) {
	t.Helper()
	err := within(p.netns, func() error {
		fd, err := packetSocket()
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_, err = unix.Write(fd, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// neverHears expects that nobody answers.
func (p *place) neverHears(ctx context.Context, t *testing.T, network string, to netip.Addr, port uint16) {
	t.Helper()
	if who, _, err := p.ask(ctx, network, to, port); err == nil {
		t.Errorf("%s hears %s at %s %s:%d", p.name, who, network, to, port)
	}
}
