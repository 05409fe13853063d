// Runs the part of a case that belongs into a forked child: what it changes for its process dies with it.
#pragma once

#include "check.hpp"

#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

namespace aner::testing {

// The child must return from `work` within a minute; a failed CHECK in it is told on standard error.
template <typename Work>
void check_in_child(Work work) {
    const pid_t child = ::fork();
    CHECK(child >= 0);
    if (child == 0) {
        ::alarm(60);
        int failed = 0;
        try {
            work();
        } catch (const std::exception & error) {
            std::fprintf(stderr, "in a child process: %s\n", error.what());
            failed = 1;
        }
        ::_exit(failed);
    }
    int status = -1;
    CHECK_EQUAL(::waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace aner::testing
