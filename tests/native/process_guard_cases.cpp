#include "forked_child.hpp"
#include "process_guard.hpp"
#include "scripted_run.hpp"

using namespace aner;
using namespace aner::testing;

ANER_CASE("Z3", a_guard_is_foreign_in_a_child_and_in_its_children_and_one_made_there_is_not) {
    const ProcessGuard guard;
    CHECK(!guard.foreign());
    check_in_child([&] {
        CHECK(guard.foreign());
        const ProcessGuard own;
        CHECK(!own.foreign());
        check_in_child([&] {
            CHECK(guard.foreign());
            CHECK(own.foreign());
        });
        CHECK(!own.foreign());
    });
    CHECK(!guard.foreign());
}

ANER_CASE("Z3", a_lease_in_a_child_refuses_everything_and_so_do_the_leases_made_from_it_there) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    check_in_child([&] {
        CHECK(lease->foreign());
        LeaseHandle sibling;
        CHECK(!lease->native_stateless().into(sibling).failed());
        CHECK(sibling->foreign());
        for (const LeaseHandle & each : {lease, sibling}) {
            GenerationHandle generation;
            const Error error = each->start(request_for(prompt_of(3), 2)).into(generation);
            CHECK(error.code() == ErrorCode::forked);
            CHECK(error.message().find("load it again in the child") != std::string::npos);
            CHECK(each->with_context_pool(1).error().code() == ErrorCode::forked);
        }
        CHECK_EQUAL(scene.script->n_calls(), 0);
    });
    check_answer(lease, prompt_of(3), 2);
}

ANER_CASE("Z3", a_running_request_cannot_go_on_in_a_child_and_goes_on_in_the_parent) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationHandle generation = start(lease, request_for(prompt_of(3), 4));
    CHECK(!generation->next().failed());
    check_in_child([&] {
        CHECK(generation->next().error().code() == ErrorCode::forked);
        CHECK_EQUAL(scene.script->n_calls(), 1);
        generation->cancel();
        generation.reset();
    });
    CHECK_EQUAL(run(*generation).error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(3), 4));
}

ANER_CASE("Z3", a_child_forked_during_a_step_neither_hangs_nor_waits_for_it) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationHandle generation = start(lease, request_for(prompt_of(3), 4));
    scene.script->on_decode = [&](int call) {
        if (call == 2) {
            check_in_child([&] {
                CHECK(generation->next().error().code() == ErrorCode::forked);
                generation->cancel();
            });
        }
    };
    CHECK_EQUAL(run(*generation).error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(3), 4));
    CHECK(scene.script->violations().empty());
}
