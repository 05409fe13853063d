#include "kv_trim.hpp"

#include <algorithm>
#include <new>

namespace aner {

Error trim_to(SequenceMemory & memory, SequenceId id, Position cut) noexcept try {
    // [oldest_needed, cut) is what the next token attends to: all of it must be there before anything is removed.
    const Position oldest_needed = memory.window() > 0 ? std::max<Position>(0, cut - memory.window()) : 0;
    if (cut > 0 && (memory.max_position(id) < cut - 1 || memory.min_position(id) > oldest_needed)) {
        return Error{ErrorCode::trim_unsupported, "the positions below a cut at " + std::to_string(cut) + " are not all there"};
    }
    if (memory.max_position(id) >= cut && !memory.remove_from(id, cut)) {
        return Error{ErrorCode::trim_unsupported, "the engine cannot remove positions from " + std::to_string(cut)};
    }
    if (memory.max_position(id) != cut - 1) {
        return Error{ErrorCode::trim_unsupported, "the engine did not keep the positions below " + std::to_string(cut)};
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::trim_unsupported};
}

}  // namespace aner
