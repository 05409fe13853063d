// A model whose next token is a known function of all tokens before it, behind the same seam as the engine.
//
// Its decoders remember what was really evaluated, so a token that is lost, doubled or out of place changes the output; and
// they note every call that the engine would abort on, answer wrongly, or not survive from two threads.
#pragma once

#include "model.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace aner::testing {

using Tokens = std::vector<Token>;

constexpr Token k_bos = 0;          // these three have no text
constexpr Token k_eos = 1;
constexpr Token k_eot = 2;
constexpr Token k_first_plain = 3;  // from here on each has one, "a" to "z"
constexpr Token k_half = 29;        // the first byte of a character of two, which the script chooses only when told

// A plain token that depends on each of the tokens and on its place.
[[nodiscard]] Token scripted_token(const Tokens & history) noexcept;

enum class Clearing { honest, refused, pretended };

// What the decoders of one model do and what was done to them; outlives them all. Any thread.
class Script {
public:
    // -- what to do; set while nothing runs. Calls are the decode calls of all contexts, counted from 1; 0: none.
    std::function<Token(const Tokens & history)> next;  // default: scripted_token
    std::function<void(int call)> on_decode;            // during each call, on its thread
    Clearing clearing = Clearing::honest;
    int failing_call = 0;
    Error failure{ErrorCode::engine, "the script says so"};
    int nan_call = 0;      // its logits are not numbers
    int rowless_call = 0;  // it succeeds and has no logits
    Error make_failure;    // of making a context

    // -- a call that does not return until it is released
    void hold(int call) noexcept;
    void wait_until_held() noexcept;
    void release() noexcept;

    // -- what was seen
    [[nodiscard]] std::vector<Batch> batches() const;
    [[nodiscard]] std::vector<std::string> violations() const;
    [[nodiscard]] int n_calls() const noexcept;
    [[nodiscard]] int n_made() const noexcept;   // contexts
    [[nodiscard]] int n_alive() const noexcept;
    [[nodiscard]] int n_cleared() const noexcept;
    void forget_batches() noexcept;

private:
    friend class ScriptedDecoder;
    friend class ScriptedModel;

    void violation(std::string what);
    int enter(const Batch & batch);

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Batch> batches_;
    std::vector<std::string> violations_;
    int n_calls_ = 0;
    int n_made_ = 0;
    int n_alive_ = 0;
    int n_cleared_ = 0;
    int held_call_ = 0;
    bool is_held_ = false;
    bool model_alive_ = false;
};

class ScriptedDecoder final : public Decoder {
public:
    ScriptedDecoder(std::shared_ptr<Script> script, const ContextSettings & settings, std::int32_t n_vocab);
    ~ScriptedDecoder() override;

    Error decode(const Batch & batch) noexcept override;
    [[nodiscard]] const float * logits(std::int32_t i) noexcept override;
    Error clear() noexcept override;
    [[nodiscard]] Position min_position(SequenceId id) const noexcept override;
    [[nodiscard]] Position max_position(SequenceId id) const noexcept override;
    [[nodiscard]] Position window() const noexcept override { return 0; }
    bool remove_from(SequenceId id, Position first) noexcept override;
    Result<std::string> save(SequenceId id) noexcept override;
    Error restore(SequenceId id, const std::string & bytes, std::int32_t n_positions) noexcept override;
    [[nodiscard]] const ResolvedContext & resolved() const noexcept override { return resolved_; }
    [[nodiscard]] MemoryUse memory() const noexcept override;

private:
    class OneCall;  // notes a second thread

    [[nodiscard]] std::string fault_of(const Batch & batch) const;
    Error evaluate(const Batch & batch, int call);

    const std::shared_ptr<Script> script_;
    const ContextSettings settings_;
    const std::int32_t n_vocab_;
    ResolvedContext resolved_;
    std::vector<Tokens> remembered_;        // of each sequence
    std::vector<std::vector<float>> rows_;  // of the last batch; empty where none was wanted
    std::atomic<bool> inside_{false};
    bool pretended_ = false;
};

class ScriptedVocabulary final : public Vocabulary {
public:
    ScriptedVocabulary();
    // One plain token for each letter.
    Result<Tokens> tokenize(std::string_view text, bool add_bos, bool parse_control,
                            const ByteSpans & literal) const noexcept override;
};

class ScriptedModel final : public Model {
public:
    static constexpr std::int32_t k_n_vocab = k_half + 1;

    ScriptedModel(std::shared_ptr<Script> script, std::int32_t context);
    ~ScriptedModel() override;
    [[nodiscard]] const ModelInfo & info() const noexcept override { return info_; }
    [[nodiscard]] const Vocabulary & vocabulary() const noexcept override { return vocabulary_; }
    Result<std::unique_ptr<Decoder>> make_decoder(const ContextSettings & settings) const noexcept override;
    Result<std::shared_ptr<const Adapter>> load_adapter(const std::string & path) const noexcept override;

private:
    const std::shared_ptr<Script> script_;
    const ScriptedVocabulary vocabulary_;
    ModelInfo info_;
};

}  // namespace aner::testing
