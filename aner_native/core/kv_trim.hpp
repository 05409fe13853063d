// The three places where positions leave a sequence's KV, each a half-open cut.
//
//   divergent suffix     [0, kept) reused        [kept, end) removed, then evaluated again
//   rejected draft       [0, verified) kept      [verified, end) removed before the next step
//   generated tail       [0, retained) kept      [retained, end) removed before the context goes back to its pool
//
// The engine can report success and still have lost cells below the cut (sliding windows), so the positions are checked on both
// sides of it. A context whose trim failed is not usable: the caller clears it or lets its lease discard it.
#pragma once

#include "decoder.hpp"

namespace aner {

// Keeps [0, cut) and removes the rest. Errors: trim_unsupported when the engine cannot keep [0, cut) exactly; the sequence is
// then to be cleared.
Error trim_to(SequenceMemory & memory, SequenceId id, Position cut) noexcept;

}  // namespace aner
