#include "compute_pool.hpp"

#include "../process_guard.hpp"

#include <atomic>
#include <map>
#include <string>

namespace aner {

namespace {

struct Shared {
    ProcessGuard guard;
    std::mutex mutex;
    std::map<std::int32_t, std::weak_ptr<ComputePool>> pools;
    std::shared_ptr<TurnQueue> turns = std::make_shared<TurnQueue>();
};

// A forked child starts with a new one: the old mutex may be held by a thread that did not come along. Never freed.
Shared & shared() noexcept {
    static std::atomic<Shared *> current{new Shared};
    Shared * now = current.load();
    if (now->guard.foreign()) {
        current.compare_exchange_strong(now, new Shared);
        now = current.load();
    }
    return *now;
}

ggml_threadpool * make_threads(std::int32_t n_threads) noexcept {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = 0;  // idle workers sleep: a server, its clients and these threads share the cores
    return ggml_threadpool_new(&params);
}

}  // namespace

void TurnQueue::enter() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t ticket = next_ticket_++;
    moved_.wait(lock, [&] { return serving_ == ticket; });
}

void TurnQueue::leave() noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++serving_;
    }
    moved_.notify_all();
}

Result<std::shared_ptr<ComputePool>> ComputePool::get(std::int32_t n_threads, bool exclusive) noexcept {
    Shared & all = shared();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (!exclusive) {
        if (auto existing = all.pools[n_threads].lock()) {
            return existing;
        }
    }
    ggml_threadpool * threads = make_threads(n_threads);
    if (threads == nullptr) {
        return Error{ErrorCode::out_of_memory, std::to_string(n_threads) + " compute threads could not be started"};
    }
    auto pool = std::make_shared<ComputePool>(threads, exclusive ? std::make_shared<TurnQueue>() : all.turns);
    if (!exclusive) {
        all.pools[n_threads] = pool;
    }
    return pool;
}

ComputePool::~ComputePool() { ggml_threadpool_free(pool_); }

}  // namespace aner
