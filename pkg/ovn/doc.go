// Package ovn keeps rows of OVN's northbound database: a Client that mirrors the part of it that Berth uses, and a
// Writer that turns desired rows into as few transactions as possible.
//
// Invariant: whatever the Writer writes, it writes in transactions that hold only under its own epoch, that contain
// nothing but the difference between what is wanted and what is there, and that touch no row and no key that belongs to
// somebody else. Nothing is read and nothing is written before the first full snapshot of the database is here.
package ovn
