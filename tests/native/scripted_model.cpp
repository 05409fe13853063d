#include "scripted_model.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>

namespace aner::testing {

Token scripted_token(const Tokens & history) noexcept {
    std::uint64_t mixed = history.size();
    for (const Token token : history) {
        mixed = (mixed ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15U;
        mixed ^= mixed >> 29;
    }
    return k_first_plain + static_cast<Token>(mixed % (k_half - k_first_plain));
}

// -- the script ------------------------------------------------------------------------------------------------------------

void Script::hold(int call) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_call_ = call;
}

void Script::wait_until_held() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_held_; });
}

void Script::release() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_call_ = 0;
    changed_.notify_all();
}

std::vector<Batch> Script::batches() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
}

std::vector<std::string> Script::violations() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return violations_;
}

int Script::n_calls() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_calls_;
}

int Script::n_made() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_made_;
}

int Script::n_alive() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_alive_;
}

int Script::n_cleared() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_cleared_;
}

void Script::forget_batches() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    batches_.clear();
}

void Script::violation(std::string what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    violations_.push_back(std::move(what));
}

int Script::enter(const Batch & batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    batches_.push_back(batch);
    const int call = ++n_calls_;
    if (held_call_ == call) {
        is_held_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return held_call_ != call; });
        is_held_ = false;
    }
    return call;
}

// -- a context -------------------------------------------------------------------------------------------------------------

class ScriptedDecoder::OneCall {
public:
    explicit OneCall(ScriptedDecoder & decoder) : decoder_(decoder) {
        if (decoder_.inside_.exchange(true)) {
            decoder_.script_->violation("two threads were inside one context");
        }
    }
    ~OneCall() { decoder_.inside_.store(false); }

private:
    ScriptedDecoder & decoder_;
};

ScriptedDecoder::ScriptedDecoder(std::shared_ptr<Script> script, const ContextSettings & settings, std::int32_t n_vocab)
    : script_(std::move(script)),
      settings_(settings),
      n_vocab_(n_vocab),
      remembered_(static_cast<std::size_t>(settings.n_sequences)) {
    resolved_.context = settings.context;
    resolved_.cells = settings.context * settings.n_sequences;
    resolved_.batch_tokens = settings.batch_tokens;
    resolved_.micro_batch_tokens = settings.micro_batch_tokens;
    resolved_.threads = settings.threads;
    resolved_.prefill_threads = settings.prefill_threads;
    const std::lock_guard<std::mutex> lock(script_->mutex_);
    script_->n_made_ += 1;
    script_->n_alive_ += 1;
}

ScriptedDecoder::~ScriptedDecoder() {
    const std::lock_guard<std::mutex> lock(script_->mutex_);
    script_->n_alive_ -= 1;
    if (inside_.load()) {
        script_->violations_.emplace_back("a context was freed while it was used");
    }
    if (!script_->model_alive_) {
        script_->violations_.emplace_back("a context outlived its model");
    }
}

std::string ScriptedDecoder::fault_of(const Batch & batch) const {
    if (batch.empty() || static_cast<std::int32_t>(batch.size()) > settings_.batch_tokens) {
        return "a batch has " + std::to_string(batch.size()) + " rows";
    }
    std::vector<std::size_t> n_seen(remembered_.size(), 0);
    std::int32_t n_outputs = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const BatchRow & row = batch[i];
        if (row.sequence < 0 || row.sequence >= settings_.n_sequences || (i > 0 && row.sequence < batch[i - 1].sequence)) {
            return "sequences are out of range or not in order";
        }
        const auto s = static_cast<std::size_t>(row.sequence);
        if (row.token < 0 || row.token >= n_vocab_) {
            return "token " + std::to_string(row.token) + " is not in the vocabulary";
        }
        if (row.position != static_cast<Position>(remembered_[s].size() + n_seen[s])) {
            return "position " + std::to_string(row.position) + " does not continue its sequence";
        }
        if (row.position >= settings_.context) {
            return "position " + std::to_string(row.position) + " is outside the context";
        }
        n_seen[s] += 1;
        n_outputs += row.wants_logits ? 1 : 0;
    }
    return n_outputs > settings_.n_outputs ? std::to_string(n_outputs) + " rows want logits" : "";
}

Error ScriptedDecoder::decode(const Batch & batch) noexcept try {
    const OneCall only(*this);
    rows_.clear();
    const int call = script_->enter(batch);
    if (script_->on_decode) {
        script_->on_decode(call);
    }
    if (std::string fault = fault_of(batch); !fault.empty()) {
        if (!pretended_) {
            script_->violation(fault);
        }
        return Error{ErrorCode::engine, fault};
    }
    if (call == script_->failing_call) {
        (void) evaluate({batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(batch.size() / 2)}, call);
        rows_.clear();
        return script_->failure;
    }
    return evaluate(batch, call);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
} catch (const std::exception & error) {  // what the script itself threw
    script_->violation(error.what());
    return Error{ErrorCode::engine, "the script failed"};
}

Error ScriptedDecoder::evaluate(const Batch & batch, int call) {
    for (const BatchRow & row : batch) {
        Tokens & history = remembered_[static_cast<std::size_t>(row.sequence)];
        history.push_back(row.token);
        rows_.emplace_back();
        if (!row.wants_logits || call == script_->rowless_call) {
            continue;
        }
        const Token next = script_->next ? script_->next(history) : scripted_token(history);
        std::vector<float> & logits = rows_.back();
        for (Token token = 0; token < n_vocab_; ++token) {
            const float other = static_cast<float>((token * 7 + static_cast<Token>(history.size())) % 11) * 0.25F;
            logits.push_back(token == next ? 4.0F : other);
        }
        if (call == script_->nan_call) {
            logits[static_cast<std::size_t>(n_vocab_ / 2)] = std::numeric_limits<float>::quiet_NaN();
        }
    }
    return {};
}

const float * ScriptedDecoder::logits(std::int32_t i) noexcept {
    const OneCall only(*this);
    const bool there = i >= 0 && static_cast<std::size_t>(i) < rows_.size();
    return there && !rows_[static_cast<std::size_t>(i)].empty() ? rows_[static_cast<std::size_t>(i)].data() : nullptr;
}

Error ScriptedDecoder::clear() noexcept {
    const OneCall only(*this);
    const std::lock_guard<std::mutex> lock(script_->mutex_);
    script_->n_cleared_ += 1;
    if (script_->clearing == Clearing::refused) {
        return Error{ErrorCode::engine, "the script does not clear"};
    }
    pretended_ = script_->clearing == Clearing::pretended;
    for (Tokens & history : remembered_) {
        history.resize(pretended_ ? history.size() : 0);
    }
    rows_.clear();
    return {};
}

Position ScriptedDecoder::min_position(SequenceId id) const noexcept { return max_position(id) < 0 ? -1 : 0; }

Position ScriptedDecoder::max_position(SequenceId id) const noexcept {
    return static_cast<Position>(remembered_[static_cast<std::size_t>(id)].size()) - 1;
}

bool ScriptedDecoder::remove_from(SequenceId id, Position first) noexcept {
    const OneCall only(*this);
    Tokens & history = remembered_[static_cast<std::size_t>(id)];
    history.resize(std::min(history.size(), static_cast<std::size_t>(first)));
    return true;
}

Result<std::string> ScriptedDecoder::save(SequenceId id) noexcept try {
    const OneCall only(*this);
    std::string bytes;
    for (const Token token : remembered_[static_cast<std::size_t>(id)]) {
        bytes += static_cast<char>(token);
    }
    return bytes;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error ScriptedDecoder::restore(SequenceId id, const std::string & bytes, std::int32_t n_positions) noexcept try {
    const OneCall only(*this);
    Tokens & history = remembered_[static_cast<std::size_t>(id)];
    history.assign(bytes.begin(), bytes.end());
    if (static_cast<std::int32_t>(history.size()) == n_positions) {
        return {};
    }
    history.clear();
    return Error{ErrorCode::engine, "the script takes other bytes"};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

MemoryUse ScriptedDecoder::memory() const noexcept {
    MemoryUse use;
    use.weights = 1000;
    use.kv = 10 * static_cast<std::int64_t>(settings_.context);
    return use;
}

// -- the model -------------------------------------------------------------------------------------------------------------

ScriptedVocabulary::ScriptedVocabulary() {
    for (Token token = 0; token < k_half; ++token) {
        add_piece(token < k_first_plain ? std::string() : std::string(1, static_cast<char>('a' + token - k_first_plain)));
    }
    add_piece("\xC3");
    bos_ = k_bos;
    eos_ = k_eos;
    end_of_generation_ = {k_eos, k_eot};
}

Result<Tokens> ScriptedVocabulary::tokenize(std::string_view text, bool, bool, const ByteSpans &) const noexcept try {
    Tokens tokens;
    for (const char letter : text) {
        const Token token = k_first_plain + letter - 'a';
        if (token < k_first_plain || token >= k_half) {
            return Error{ErrorCode::invalid_request, "not a letter of the script"};
        }
        tokens.push_back(token);
    }
    return tokens;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

ScriptedModel::ScriptedModel(std::shared_ptr<Script> script, std::int32_t context)
    : script_(std::move(script)) {
    info_.path = "scripted";
    info_.device = "cpu";
    info_.settings.context = context;
    info_.facts.n_vocab = k_n_vocab;
    const std::lock_guard<std::mutex> lock(script_->mutex_);
    script_->model_alive_ = true;
}

ScriptedModel::~ScriptedModel() {
    const std::lock_guard<std::mutex> lock(script_->mutex_);
    script_->model_alive_ = false;
}

Result<std::unique_ptr<Decoder>> ScriptedModel::make_decoder(const ContextSettings & settings) const noexcept try {
    if (script_->make_failure.failed()) {
        return script_->make_failure;
    }
    return std::unique_ptr<Decoder>(std::make_unique<ScriptedDecoder>(script_, settings, k_n_vocab));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<std::shared_ptr<const Adapter>> ScriptedModel::load_adapter(const std::string & path) const noexcept {
    return Error{ErrorCode::adapter, path};  // the script has none
}

}  // namespace aner::testing
