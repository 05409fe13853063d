#include "session.hpp"

#include "direct_generation.hpp"
#include "kv_trim.hpp"
#include "prefix_match.hpp"

#include <algorithm>
#include <new>

namespace aner {

// [0, n_cached) is shared with the prompt, [n_cached, end) was removed and is kept here for the case of failure.
class Session::Turn final : public ContextHold {
public:
    Turn(std::shared_ptr<Session> session, std::int32_t n_cached) noexcept : session_(std::move(session)), n_cached_(n_cached) {}

    ~Turn() override {
        if (kept_) {
            return;
        }
        Session & s = *session_;
        std::vector<Token> before = std::move(s.tokens_);
        std::int32_t in_memory = n_cached_;
        if (trim_to(*s.decoder_, 0, in_memory).failed()) {
            s.forget();
            in_memory = 0;
        }
        if (s.usable_ && !s.evaluate(before, in_memory).failed()) {
            s.tokens_ = std::move(before);
        } else {
            s.forget();
        }
    }

    [[nodiscard]] Decoder & decoder() noexcept override { return *session_->decoder_; }
    [[nodiscard]] std::int32_t n_cached() const noexcept override { return n_cached_; }

    Error keep(const std::vector<Token> & history, std::int32_t /*n_prompt*/, std::int32_t n_computed,
               Timings & /*timings*/) noexcept override try {
        kept_ = true;
        Session & s = *session_;
        s.tokens_.assign(history.begin(), history.begin() + n_computed);
        if (s.decoder_->max_position(0) == n_computed - 1) {
            return {};  // nothing to remove: a memory that cannot be trimmed serves too
        }
        Error error = trim_to(*s.decoder_, 0, n_computed);
        if (error.failed()) {
            s.forget();
        }
        return error;
    } catch (const std::bad_alloc &) {
        session_->forget();
        return Error{ErrorCode::out_of_memory};
    }

private:
    const std::shared_ptr<Session> session_;
    const std::int32_t n_cached_;
    bool kept_ = false;
};

Session::Session(ModelHandle model, const ContextSettings & settings, CostTable costs, std::unique_ptr<Decoder> decoder)
    : model_(std::move(model)), settings_(settings), costs_(std::move(costs)), decoder_(std::move(decoder)) {}

Result<std::shared_ptr<Session>> Session::make(ModelHandle model, const ContextSettings & settings, CostTable costs) noexcept try {
    Result<std::unique_ptr<Decoder>> decoder = model->make_decoder(settings);
    if (decoder.failed()) {
        return decoder.error();
    }
    return std::make_shared<Session>(std::move(model), settings, std::move(costs), decoder.take());
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<Admission> Session::admit() noexcept {
    if (foreign()) {
        return Error{ErrorCode::forked, "this session was made before the process forked: make one in the child from a model "
                                        "that was loaded there"};
    }
    if (taken_->exchange(true, std::memory_order_acquire)) {
        return Error{ErrorCode::busy, "this session is in the middle of a turn: finish or cancel it first"};
    }
    return Admission(taken_);
}

Result<std::shared_ptr<Generation>> Session::start(GenerationRequest request) noexcept {
    if (Error error = validate(request, model_->vocabulary().n_tokens(), settings_.context); error.failed()) {
        return error;
    }
    if (Error error = validate_draft_sampling(settings_, request); error.failed()) {
        return error;
    }
    Result<Admission> admission = admit();
    if (admission.failed()) {
        return admission.error();
    }
    return start_direct(model_, *this, settings_, costs_, admission.take(), std::move(request));
}

Result<std::unique_ptr<ContextHold>> Session::acquire(const std::vector<Token> & prompt, std::int32_t /*n_template*/,
                                                      Timings & /*timings*/) noexcept try {
    if (!usable_) {
        return Error{ErrorCode::engine, "this session's context is not usable any more: make a new session"};
    }
    // [0, kept) is shared, [kept, end) removed; the last token of the prompt is always evaluated: its logits are needed
    std::int32_t kept = std::min(common_prefix(tokens_, prompt), static_cast<std::int32_t>(prompt.size()) - 1);
    if (kept < static_cast<std::int32_t>(tokens_.size()) && trim_to(*decoder_, 0, kept).failed()) {
        std::vector<Token> before = std::move(tokens_);
        forget();
        if (!usable_) {
            return Error{ErrorCode::engine, "this session's context could not be cleared: make a new session"};
        }
        tokens_ = std::move(before);  // what a failed turn has to bring back
        kept = 0;
    }
    return std::unique_ptr<ContextHold>(std::make_unique<Turn>(shared_from_this(), kept));
} catch (const std::bad_alloc &) {
    forget();  // what was removed cannot be brought back without a Turn
    return Error{ErrorCode::out_of_memory};
}

Error Session::evaluate(const std::vector<Token> & tokens, std::int32_t from) noexcept try {
    Batch batch;
    const auto end = static_cast<std::int32_t>(tokens.size());
    while (from < end) {
        const std::int32_t stop = std::min(end, from + settings_.micro_batch_tokens);
        batch.clear();
        for (; from < stop; ++from) {
            batch.push_back({tokens[static_cast<std::size_t>(from)], from, 0, false});
        }
        if (Error error = decoder_->decode(batch); error.failed()) {
            return error;
        }
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

void Session::forget() noexcept {
    tokens_.clear();
    usable_ = !decoder_->clear().failed();
}

Error Session::reset() noexcept {
    const Result<Admission> admission = admit();
    if (admission.failed()) {
        return admission.error();
    }
    forget();
    return usable_ ? Error{} : Error{ErrorCode::engine, "this session's context could not be cleared: make a new session"};
}

Result<Session::Snapshot> Session::save() noexcept try {
    const Result<Admission> admission = admit();
    if (admission.failed()) {
        return admission.error();
    }
    Snapshot snapshot;
    snapshot.tokens = tokens_;
    if (!tokens_.empty()) {
        if (Error error = decoder_->save(0).into(snapshot.memory); error.failed()) {
            return error;
        }
    }
    return snapshot;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error Session::restore(Snapshot snapshot) noexcept try {
    const Result<Admission> admission = admit();
    if (admission.failed()) {
        return admission.error();
    }
    const auto n = static_cast<std::int32_t>(snapshot.tokens.size());
    const bool known = std::all_of(snapshot.tokens.begin(), snapshot.tokens.end(),
                                   [this](Token token) { return model_->vocabulary().contains(token); });
    if (!tokens_.empty() || n > settings_.context || !known) {
        return Error{ErrorCode::invalid_request, "the snapshot's " + std::to_string(n) + " tokens do not fit this session"};
    }
    if (n > 0) {
        if (Error error = decoder_->restore(0, snapshot.memory, n); error.failed()) {
            return error;
        }
    }
    tokens_ = std::move(snapshot.tokens);
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner
