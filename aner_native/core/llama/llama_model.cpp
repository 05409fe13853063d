#include "llama_model.hpp"

#include "../engine_gate.hpp"
#include "../host_memory.hpp"
#include "../kv_layout.hpp"
#include "../log_ring.hpp"
#include "backend.hpp"
#include "llama_decoder.hpp"
#include "llama_handles.hpp"
#include "llama_private.hpp"
#include "llama_vocabulary.hpp"

#include <exception>
#include <mutex>
#include <new>

namespace aner {

namespace {

// Keeps the weights alive: the engine ties an adapter to its model.
class LlamaAdapter final : public Adapter {
public:
    LlamaAdapter(std::shared_ptr<const void> model, LlamaAdapterPtr adapter, std::string path, std::string fingerprint) noexcept
        : model_(std::move(model)), adapter_(std::move(adapter)), path_(std::move(path)), fingerprint_(std::move(fingerprint)) {}
    ~LlamaAdapter() override {
        const std::lock_guard<std::mutex> lock(adapters_of_models());
        adapter_.reset();
    }

    // The engine's list of a model's adapters has no lock of its own.
    static std::mutex & adapters_of_models() noexcept {
        static std::mutex & only = *new std::mutex;
        return only;
    }

    [[nodiscard]] const std::string & path() const noexcept override { return path_; }
    [[nodiscard]] const std::string & fingerprint() const noexcept override { return fingerprint_; }
    [[nodiscard]] llama_adapter_lora * get() const noexcept { return adapter_.get(); }

private:
    const std::shared_ptr<const void> model_;
    LlamaAdapterPtr adapter_;
    const std::string path_;
    const std::string fingerprint_;
};

class LlamaModel final : public Model, public std::enable_shared_from_this<LlamaModel> {
public:
    LlamaModel(LlamaModelPtr model, LlamaVocabulary vocabulary, ModelInfo info, TensorShapes shapes, bool on_cpu,
               std::int64_t planned_weights = k_unmeasured) noexcept
        : model_(std::move(model)),
          vocabulary_(std::move(vocabulary)),
          info_(std::move(info)),
          shapes_(std::move(shapes)),
          on_cpu_(on_cpu),
          planned_weights_(planned_weights) {}

    [[nodiscard]] const ModelInfo & info() const noexcept override { return info_; }
    [[nodiscard]] const Vocabulary & vocabulary() const noexcept override { return vocabulary_; }

    Result<std::unique_ptr<Decoder>> make_decoder(const ContextSettings & settings) const noexcept override {
        if (model_.get_deleter().guard.foreign()) {
            return Error{ErrorCode::forked, "this model was loaded before the process forked: load it again in the child"};
        }
        const ContextTarget target{model_.get(), on_cpu_, vocabulary_.n_tokens(), info_.facts.sliding_window,
                                   planned_weights_};
        std::vector<AppliedAdapter> applied;
        for (const EffectiveAdapter & one : settings.adapters) {
            applied.push_back({static_cast<const LlamaAdapter &>(*one.adapter).get(), one.scale});
        }
        return LlamaDecoder::make(shared_from_this(), target, settings, std::move(applied));
    }

    Result<std::shared_ptr<const Adapter>> load_adapter(const std::string & path) const noexcept override try {
        if (model_.get_deleter().guard.foreign()) {
            return Error{ErrorCode::forked, "this model was loaded before the process forked: load it again in the child"};
        }
        const EngineCall call;
        if (Error error = call.check(); error.failed()) {
            return error;
        }
        Result<GgufHeader> header = read_gguf_header(path);
        if (header.failed()) {
            const bool missing = header.error().code() == ErrorCode::model_not_found;
            return missing ? header.error() : Error{ErrorCode::adapter, header.error().message()};
        }
        if (Error error = admit_adapter(header.value(), info_.facts, shapes_); error.failed()) {
            return error;
        }
        Result<Digest> before = digest_files({path}, nullptr, nullptr);
        if (before.failed()) {
            return before.error();
        }
        const std::uint64_t mark = LogRing::mark();
        const std::lock_guard<std::mutex> lock(LlamaAdapter::adapters_of_models());
        LlamaAdapterPtr adapter(llama_adapter_lora_init(model_.get(), path.c_str()));
        if (adapter == nullptr) {
            return Error{ErrorCode::adapter, path + ": the engine refuses this adapter: " + LogRing::errors_since(mark)};
        }
        Result<Digest> after = digest_files({path}, nullptr, nullptr);
        if (after.failed() || after.value().hex != before.value().hex) {
            return Error{ErrorCode::fingerprint_mismatch, path + " changed while it was loaded"};
        }
        return std::shared_ptr<const Adapter>(
            std::make_shared<LlamaAdapter>(shared_from_this(), std::move(adapter), path, before.value().hex));
    } catch (const std::exception & error) {
        return Error{ErrorCode::adapter, path + ": the engine refuses this adapter: " + error.what()};
    }

private:
    const LlamaModelPtr model_;
    const LlamaVocabulary vocabulary_;
    const ModelInfo info_;
    const TensorShapes shapes_;
    const bool on_cpu_;
    const std::int64_t planned_weights_;
};

MemoryKind memory_kind_of(const llama_model * model) noexcept {
    return llama_model_is_hybrid(model)      ? MemoryKind::hybrid
           : llama_model_is_recurrent(model) ? MemoryKind::recurrent
           : llama_model_n_swa(model) > 0    ? MemoryKind::sliding_window
                                             : MemoryKind::attention;
}

Error refuse_if_it_cannot_generate(const llama_model * model) noexcept {
    const char * reason = llama_model_is_diffusion(model)   ? "it is a diffusion model"
                          : llama_model_has_encoder(model)  ? "it has an encoder"
                          : !llama_model_has_decoder(model) ? "it has no decoder"
                                                            : nullptr;
    if (reason == nullptr) {
        return {};
    }
    return Error{ErrorCode::model_load, std::string("this model cannot generate text: ") + reason};
}

bool on_progress(float fraction, void * data) {
    auto & progress = *static_cast<LoadProgress *>(data);
    progress.fraction.store(fraction);
    return !progress.cancelled.load() && !engine_gate_closed();
}

Result<LlamaModelPtr> open_in_engine(const AdmittedModel & admitted, llama_model_params params) noexcept {
    const std::uint64_t mark = LogRing::mark();
    try {
        std::vector<const char *> paths;
        for (const std::string & path : admitted.paths) {
            paths.push_back(path.c_str());
        }
        LlamaModelPtr model(paths.size() == 1 ? llama_model_load_from_file(paths.front(), params)
                                              : llama_model_load_from_splits(paths.data(), paths.size(), params));
        if (model == nullptr) {
            return Error{ErrorCode::model_load, admitted.paths.front() + ": the engine refuses this model: " + LogRing::errors_since(mark)};
        }
        return model;
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory, admitted.paths.front() + ": not enough memory to load this model"};
    } catch (const std::exception & error) {
        return Error{ErrorCode::model_load, admitted.paths.front() + ": the engine refuses this model: " + error.what()};
    }
}

// `devices` ends with a null; a list of nothing else: no accelerator is even started.
llama_model_params model_params(ggml_backend_dev_t * devices, const LoadSettings & settings) noexcept {
    const bool on_cpu = devices[0] == nullptr;
    llama_model_params params = llama_model_default_params();
    params.devices = devices;
    params.split_mode = LLAMA_SPLIT_MODE_NONE;
    params.main_gpu = on_cpu ? -1 : 0;
    params.n_gpu_layers = on_cpu ? 0 : -1;
    params.use_extra_bufts = !settings.reproducible;
    return params;
}

bool is_mapped(const LoadSettings & settings) noexcept { return settings.mapped && llama_supports_mmap(); }

std::string description_of(const llama_model * model) noexcept {
    char text[256] = {};
    llama_model_desc(model, text, sizeof text);
    return text;
}

// Weights in private memory must fit; mapped ones are the page cache's business.
Error check_private_weights(const AdmittedModel & admitted, bool mapped) noexcept {
    const std::int64_t available = available_memory();
    const auto needed = static_cast<std::int64_t>(admitted.facts.tensor_bytes);
    if (mapped || available < 0 || needed <= available) {
        return {};
    }
    return Error{ErrorCode::out_of_memory, "the weights take " + std::to_string(needed >> 20) + " MiB and " +
                                               std::to_string(available >> 20) + " MiB are available: load with mapped=True, or use "
                                               "a smaller model"};
}

}  // namespace

Result<ModelHandle> load_model(const AdmittedModel & admitted, const LoadSettings & settings, Clock::time_point start,
                               Nanoseconds probe_duration, LoadProgress & progress) noexcept {
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    if (Error error = validate_kv_type(admitted.facts, settings.kv_type, settings.flash_attention); error.failed()) {
        return error;
    }
    if (Error error = check_private_weights(admitted, settings.mapped); error.failed()) {
        return error;
    }
    const std::int64_t kv_bytes = settings.context * kv_bytes_per_position(admitted.facts, settings.kv_type);
    Result<ChosenDevice> device = choose_device(settings.reproducible ? "cpu" : settings.device,
                                                static_cast<std::int64_t>(admitted.facts.tensor_bytes) + kv_bytes);
    if (device.failed()) {
        return device.error();
    }
    const bool on_cpu = device.value().accelerator == nullptr;

    progress.enter(LoadPhase::engine);
    ggml_backend_dev_t devices[] = {device.value().accelerator, nullptr};
    llama_model_params params = model_params(devices, settings);
    params.load_mode = is_mapped(settings) ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    params.progress_callback = on_progress;
    params.progress_callback_user_data = &progress;
    const Clock::time_point before = Clock::now();
    Result<LlamaModelPtr> opened = open_in_engine(admitted, params);
    if (progress.cancelled.load() || engine_gate_closed()) {
        return Error{ErrorCode::cancelled, "the load was cancelled"};
    }
    if (opened.failed()) {
        return opened.error();
    }
    const Nanoseconds engine_duration = elapsed(before, Clock::now());
    if (Error error = refuse_if_it_cannot_generate(opened.value().get()); error.failed()) {
        return error;
    }
    LlamaVocabulary vocabulary;
    if (Error error = vocabulary.read(llama_model_get_vocab(opened.value().get())); error.failed()) {
        return error;
    }
    Result<Digest> after = verify_content(admitted, progress);
    if (after.failed()) {
        return after.error();
    }

    ModelInfo info;
    info.path = admitted.paths.front();
    info.fingerprint = admitted.digest.hex;
    info.description = description_of(opened.value().get());
    info.device = device.value().name;
    info.memory_kind = memory_kind_of(opened.value().get());
    info.facts = admitted.facts;
    info.settings = settings;
    info.summary.digest_before_bytes = admitted.digest.bytes;
    info.summary.digest_after_bytes = after.value().bytes;
    info.summary.digest_before = admitted.digest.duration;
    info.summary.digest_after = after.value().duration;
    info.summary.probe = probe_duration;
    info.summary.engine = engine_duration;
    info.summary.total = elapsed(start, Clock::now());
    return ModelHandle(std::make_shared<LlamaModel>(opened.take(), std::move(vocabulary), std::move(info), admitted.shapes, on_cpu));
}

Result<ModelHandle> open_for_planning(const AdmittedModel & admitted, const LoadSettings & settings) noexcept try {
    ensure_backend();
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    std::vector<GgufHeader> splits(admitted.paths.size());
    for (std::size_t i = 0; i < splits.size(); ++i) {
        if (Error error = read_gguf_header(admitted.paths[i]).into(splits[i]); error.failed()) {
            return error;
        }
    }
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = model_params(no_devices, settings);
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.no_alloc = true;
    Result<LlamaModelPtr> opened = open_in_engine(admitted, params);
    if (opened.failed()) {
        return opened.error();
    }
    llama_model * model = opened.value().get();
    if (Error error = refuse_if_it_cannot_generate(model); error.failed()) {
        return error;
    }
    LlamaVocabulary vocabulary;
    if (Error error = vocabulary.read(llama_model_get_vocab(model)); error.failed()) {
        return error;
    }
    const std::int64_t weights = engine_private::planned_weights(*model, is_mapped(settings), splits);
    ModelInfo info;
    info.path = admitted.paths.front();
    info.device = "cpu";
    info.memory_kind = memory_kind_of(model);
    info.facts = admitted.facts;
    info.settings = settings;
    return ModelHandle(std::make_shared<LlamaModel>(opened.take(), std::move(vocabulary), std::move(info), admitted.shapes, true, weights));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error probe_model(const AdmittedModel & admitted) noexcept {
    ensure_backend();
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = llama_model_default_params();
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.vocab_only = true;
    {
        Result<LlamaModelPtr> vocabulary_only = open_in_engine(admitted, params);
        if (vocabulary_only.failed()) {
            return vocabulary_only.error();
        }
        LlamaVocabulary vocabulary;
        if (Error error = vocabulary.read(llama_model_get_vocab(vocabulary_only.value().get())); error.failed()) {
            return error;
        }
        if (Result<std::vector<Token>> tokens = vocabulary.tokenize("Hello, world 123\n", true, true, {}); tokens.failed()) {
            return tokens.error();
        }
    }
    params.vocab_only = false;
    params.no_alloc = true;
    Result<LlamaModelPtr> model = open_in_engine(admitted, params);
    if (model.failed()) {
        return model.error();
    }
    if (Error error = refuse_if_it_cannot_generate(model.value().get()); error.failed()) {
        return error;
    }
    llama_context_params context = llama_context_default_params();
    context.n_ctx = 512;
    context.n_batch = 64;
    context.n_ubatch = 64;
    context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    const std::uint64_t mark = LogRing::mark();
    try {
        const LlamaContextPtr made(llama_init_from_model(model.value().get(), context));
        if (made == nullptr || llama_get_memory(made.get()) == nullptr) {
            return Error{ErrorCode::model_load, admitted.paths.front() + ": the engine cannot make a context for this model: " +
                                                    LogRing::errors_since(mark)};
        }
    } catch (const std::exception & error) {
        return Error{ErrorCode::model_load, admitted.paths.front() + ": the engine refuses this model: " + error.what()};
    }
    return {};
}

}  // namespace aner
