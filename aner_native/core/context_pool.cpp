#include "context_pool.hpp"

#include "cost_table.hpp"
#include "kv_trim.hpp"
#include "prefix_choice.hpp"
#include "prefix_match.hpp"

#include <algorithm>
#include <new>

namespace aner {

class ContextPool::Loan final : public ContextHold {
public:
    Loan(std::shared_ptr<ContextPool> pool, std::unique_ptr<Decoder> decoder, std::int32_t n_cached) noexcept
        : pool_(std::move(pool)), decoder_(std::move(decoder)), n_cached_(n_cached) {}

    [[nodiscard]] Decoder & decoder() noexcept override { return *decoder_; }
    [[nodiscard]] std::int32_t n_cached() const noexcept override { return n_cached_; }

    Error keep(const std::vector<Token> & history, std::int32_t n_prompt, std::int32_t /*n_computed*/,
               Timings & timings) noexcept override try {
        const Clock::time_point before = Clock::now();
        Idle idle;
        idle.decoder = std::move(decoder_);  // freed on return if it is not put back
        Error error;
        if (pool_->retains_prefixes()) {
            // [0, retained) stays, [retained, end) goes: what the prompt has too much, and everything that was generated
            const std::int32_t retained = std::min(n_prompt, pool_->policy_.max_tokens);
            error = trim_to(*idle.decoder, 0, retained);
            idle.tokens.assign(history.begin(), history.begin() + retained);
        } else {
            error = idle.decoder->clear();
        }
        if (!error.failed()) {
            timings.context_clear_duration = elapsed(before, Clock::now());
            pool_->put(std::move(idle));
        }
        pool_->report(timings);
        return error;
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory};
    }

private:
    const std::shared_ptr<ContextPool> pool_;
    std::unique_ptr<Decoder> decoder_;
    const std::int32_t n_cached_;
};

std::size_t ContextPool::capacity() const noexcept {
    return static_cast<std::size_t>(retains_prefixes() ? std::min(policy_.max_idle, policy_.max_entries) : policy_.max_idle);
}

Result<std::unique_ptr<ContextHold>> ContextPool::acquire(const std::vector<Token> & prompt, std::int32_t n_template,
                                                          Timings & timings) noexcept try {
    Idle taken = take(prompt, n_template);
    timings.context_pool_reused = taken.decoder != nullptr ? 1 : 0;
    std::int32_t kept = 0;
    if (taken.decoder == nullptr) {
        Result<std::unique_ptr<Decoder>> made = model_->make_decoder(settings_);
        if (made.failed()) {
            return made.error();
        }
        taken.decoder = made.take();
    } else if (retains_prefixes()) {
        // [0, kept) is reused, [kept, end) removed; the last token of the prompt is always evaluated: its logits are needed
        kept = std::min(common_prefix(taken.tokens, prompt), static_cast<std::int32_t>(prompt.size()) - 1);
        if (trim_to(*taken.decoder, 0, kept).failed()) {
            kept = 0;
            if (Error error = taken.decoder->clear(); error.failed()) {
                return error;
            }
        }
    }
    if (retains_prefixes()) {
        timings.prefix_cache_hit = kept > 0 ? 1 : 0;
    }
    return std::unique_ptr<ContextHold>(std::make_unique<Loan>(shared_from_this(), std::move(taken.decoder), kept));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

ContextPool::Idle ContextPool::take(const std::vector<Token> & prompt, std::int32_t n_template) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<IdlePrefix> views;
    for (const Idle & one : idle_) {
        views.push_back({static_cast<std::int32_t>(one.tokens.size()), common_prefix(one.tokens, prompt), one.last_used});
    }
    const std::int32_t chosen = choose_context(views, n_template, idle_.size() < capacity());
    if (chosen == k_new_context) {
        return {};
    }
    Idle taken = std::move(idle_[static_cast<std::size_t>(chosen)]);
    idle_.erase(idle_.begin() + chosen);
    return taken;
}

Error ContextPool::prove() noexcept {
    Result<std::unique_ptr<Decoder>> made = model_->make_decoder(settings_);
    if (made.failed()) {
        return made.error();
    }
    Idle first;
    first.decoder = made.take();
    resolved_ = first.decoder->resolved();
    memory_ = first.decoder->memory();
    if (settings_.n_outputs > 1) {
        if (Error error = measure_costs(*first.decoder, settings_.n_outputs, model_->vocabulary().n_tokens()).into(costs_);
            error.failed()) {
            return error;
        }
    }
    put(std::move(first));
    return {};
}

std::int32_t ContextPool::n_idle() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::int32_t>(idle_.size());
}

// An empty context; else an entry that the newer one contains; else the least recently used.
std::size_t ContextPool::least_valuable(const std::vector<Token> & newer) const noexcept {
    const auto contained = [&](const Idle & one) {
        return common_prefix(one.tokens, newer) == static_cast<std::int32_t>(one.tokens.size());
    };
    auto found = std::find_if(idle_.begin(), idle_.end(), [](const Idle & one) { return one.tokens.empty(); });
    if (found == idle_.end()) {
        found = std::find_if(idle_.begin(), idle_.end(), contained);
    }
    if (found == idle_.end()) {
        found = std::min_element(idle_.begin(), idle_.end(), [](const Idle & a, const Idle & b) { return a.last_used < b.last_used; });
    }
    return static_cast<std::size_t>(found - idle_.begin());
}

void ContextPool::put(Idle idle) noexcept {
    Idle evicted;  // freed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    idle.last_used = ++uses_;
    if (capacity() == 0) {
        evicted = std::move(idle);
        return;
    }
    if (idle_.size() == capacity()) {
        const std::size_t i = least_valuable(idle.tokens);
        evicted = std::move(idle_[i]);
        idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    idle_.push_back(std::move(idle));
}

void ContextPool::report(Timings & timings) const noexcept {
    if (!retains_prefixes()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    timings.prefix_cache_entries = policy_.max_entries;
    timings.prefix_cache_retained_entries = 0;
    timings.prefix_cache_retained_tokens = 0;
    for (const Idle & one : idle_) {
        timings.prefix_cache_retained_entries += one.tokens.empty() ? 0 : 1;
        timings.prefix_cache_retained_tokens += static_cast<std::int64_t>(one.tokens.size());
    }
}

}  // namespace aner
