#include "load_task.hpp"

#include "../../include/aner/aner.hpp"

#include <new>

namespace aner {

namespace {

constexpr std::int64_t k_look_again_ms = 60'000;

Error waited(LoadTask & task) noexcept {
    while (!task.wait(k_look_again_ms)) {
    }
    return task.error();
}

}  // namespace

Result<LeaseHandle> load(const std::string & path, const LoadSettings & settings) noexcept try {
    LoadTask task(path, settings);
    task.start_admission(true);
    if (Error error = waited(task); error.failed()) {
        return error;
    }
    if (!task.admitted().covered) {
        return Error{ErrorCode::unsupported_operation, "this model's architecture, '" + task.admitted().facts.architecture +
                                                           "', is not covered by aner's tests, and only the Python package can "
                                                           "try it in a process of its own"};
    }
    task.start_load(k_unmeasured);
    if (Error error = waited(task); error.failed()) {
        return error;
    }
    return task.lease();
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner
