package ipam

import (
	"context"
	"errors"
)

// Errors of a Store. Every other error means that the outcome of a write is unknown.
var (
	// ErrConflict: the block is not at the resourceVersion that the write named (or exists, or is gone).
	ErrConflict = errors.New("block has changed")
	// ErrNotFound: there is no such block.
	ErrNotFound = errors.New("no such block")
	// ErrRefused: the store will not have this write, and nothing was written.
	ErrRefused = errors.New("write refused")
)

// Store keeps blocks. All reads are live: they see every write that was answered before they began. Implementations
// return fresh values that the caller may keep.
type Store interface {
	// Get reads a block: ErrNotFound when there is none.
	Get(ctx context.Context, name string) (*Block, error)
	// List reads all blocks of the named subnets (or L2 domains); none named means all there are.
	List(ctx context.Context, subnets ...string) ([]*Block, error)
	// ListOwner reads, of the blocks of the named subnets (or L2 domains), at least those in which the sticky owner has a
	// lease.
	ListOwner(ctx context.Context, owner Owner, subnets ...string) ([]*Block, error)
	// Write creates b when its ResourceVersion is empty, else replaces the block that has this ResourceVersion. It
	// returns what is stored. ErrConflict, ErrRefused, or unknown.
	Write(ctx context.Context, b *Block) (*Block, error)
	// Delete removes the block at b's ResourceVersion. ErrConflict (gone or changed), ErrRefused, or unknown.
	Delete(ctx context.Context, b *Block) error
}

// Observer learns what a Store's watch sees. *Ledger is one.
type Observer interface {
	// Observe tells of a block as it was at its ResourceVersion. Older news than what is known is ignored.
	Observe(b *Block)
	// Forget tells that the block was gone at that ResourceVersion.
	Forget(name, resourceVersion string)
	// Replace tells all blocks that there are at that ResourceVersion: others are gone.
	Replace(blocks []*Block, resourceVersion string)
}
