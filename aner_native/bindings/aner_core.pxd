# Declarations of the C++ core as the binding uses it. Nothing is defined here. What is a `ctypedef struct` becomes a dict, with
# the names that Python sees.
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.utility cimport pair
from libcpp.vector cimport vector
from libcpp.map cimport map as cpp_map


cdef extern from "types.hpp" namespace "aner" nogil:
    ctypedef int32_t Token


cdef extern from "types.hpp" namespace "aner" nogil:
    cdef cppclass TimePoint "aner::Clock::time_point":
        pass
    TimePoint now "aner::Clock::now"() noexcept


cdef extern from "errors.hpp" namespace "aner" nogil:
    cdef enum class ErrorCode(int32_t):
        ok
        cancelled
        count_
    const char * error_name "aner::name_of"(ErrorCode code) noexcept

    cdef cppclass Error:
        Error() noexcept
        bool failed() noexcept
        ErrorCode code() noexcept
        const string & message() noexcept

    cdef cppclass Result[T]:
        Error into(T & out) noexcept


cdef extern from "profile.hpp" namespace "aner" nogil:
    cdef enum class KvType(int32_t):
        f16
    cdef enum class FlashAttention(int32_t):
        automatic
    cdef cppclass LoadSettings:
        int32_t context
        string device
        KvType kv_type
        FlashAttention flash_attention
        bool reproducible
        bool mapped
        string expected_sha256
    ctypedef struct OptimizerSettings:
        int32_t threads
        int32_t prefill_threads
        int32_t batch_tokens
        int32_t micro_batch_tokens
        int32_t prefix_cache_entries
        int32_t prefix_cache_tokens
        int32_t speculative_tokens
    cdef cppclass Profile:
        OptimizerSettings optimizer
        int32_t max_idle_contexts
        int32_t max_sequences
        int64_t step_target
    cdef cppclass ContextSettings:
        int32_t context
    Result[KvType] kv_type_named(const string & name) noexcept
    Result[FlashAttention] flash_attention_named(const string & name) noexcept
    const char * kv_type_name "aner::name_of"(KvType type) noexcept
    const char * policy_name "aner::name_of"(FlashAttention policy) noexcept
    int32_t usable_cpus() noexcept


cdef extern from "host_memory.hpp" namespace "aner" nogil:
    int64_t available_memory() noexcept


cdef extern from "decoder.hpp" namespace "aner" nogil:
    ctypedef struct MemoryUse:
        int64_t weights_bytes "weights"
        int64_t kv_bytes "kv"
        int64_t kv_payload_bytes "kv_payload"
        int64_t kv_attention_bytes "kv_attention"
        int64_t kv_sliding_window_bytes "kv_windowed"
        int64_t kv_recurrent_bytes "kv_recurrent"
        int64_t compute_bytes "compute"
        int64_t output_bytes "output"
    ctypedef struct ResolvedContext:
        int32_t context
        int32_t cells
        int32_t batch_tokens
        int32_t micro_batch_tokens
        int32_t threads
        int32_t prefill_threads
        bool flash_attention
        int32_t flash_attention_rows
        bool unified_kv


cdef extern from "vocabulary.hpp" namespace "aner" nogil:
    ctypedef vector[pair[int64_t, int64_t]] ByteSpans
    cdef cppclass Vocabulary:
        Result[vector[Token]] tokenize(string_view text, bool add_bos, bool parse_control, const ByteSpans & literal) noexcept
        int32_t n_tokens() noexcept
        bool contains(Token token) noexcept
        string_view piece(Token token) noexcept
        Token bos() noexcept
        Token eos() noexcept
        bool adds_bos() noexcept
        const vector[Token] & end_of_generation() noexcept
        const vector[pair[string, Token]] & control() noexcept
        size_t longest_piece() noexcept


cdef extern from "model_facts.hpp" namespace "aner" nogil:
    cdef cppclass TypeUse "aner::ModelFacts::TypeUse":
        int64_t n_tensors
        uint64_t bytes
    cdef cppclass ModelFacts:
        string architecture
        string name
        int32_t n_layer
        int32_t n_embd
        int32_t n_vocab
        int32_t context_train
        vector[int32_t] n_head
        vector[int32_t] n_head_kv
        int32_t head_dim_k
        int32_t head_dim_v
        int32_t sliding_window
        bool is_recurrent
        bool is_hybrid
        string chat_template
        string vocabulary
        cpp_map[string, TypeUse] tensor_types
        uint64_t tensor_bytes
        int64_t n_parameters


cdef extern from "kv_layout.hpp" namespace "aner" nogil:
    int64_t kv_bytes_per_position(const ModelFacts & facts, KvType type) noexcept


cdef extern from "model.hpp" namespace "aner" nogil:
    cdef enum class MemoryKind(int32_t):
        attention
        sliding_window
        recurrent
        hybrid
    ctypedef struct LoadSummary:
        int64_t digest_before_bytes
        int64_t digest_after_bytes
        int64_t digest_before_duration "digest_before"
        int64_t digest_after_duration "digest_after"
        int64_t probe_duration "probe"
        int64_t engine_load_duration "engine"
        int64_t total_duration "total"
    cdef cppclass ModelInfo:
        string path
        string fingerprint
        string description
        string device
        MemoryKind memory_kind
        ModelFacts facts
        LoadSettings settings
        LoadSummary summary
    cdef cppclass Model:
        const ModelInfo & info() noexcept
        const Vocabulary & vocabulary() noexcept
    ctypedef shared_ptr[const Model] ModelHandle


cdef extern from "memory_plan.hpp" namespace "aner" nogil:
    cdef cppclass PlannedContext:
        ResolvedContext resolved
        MemoryUse memory
        int64_t written
        int32_t retained
        int64_t tables
    Result[PlannedContext] plan_context(const Model & model, const LoadSettings & load, const OptimizerSettings & optimizer,
                                        int32_t max_sequences) noexcept


cdef extern from "sampler.hpp" namespace "aner" nogil:
    cdef cppclass TopLogprob:
        Token token
        float logprob
    cdef cppclass Sampled:
        Token token
        float logprob
        vector[TopLogprob] top
    ctypedef struct SamplingOptions:
        float temperature
        int32_t top_k
        float top_p
        float min_p
        float repeat_penalty
        float frequency_penalty
        float presence_penalty
        int32_t penalty_window
        vector[pair[Token, float]] logit_bias
        uint64_t seed
        bool ignore_eos
        int32_t min_tokens
        vector[Token] stop_token_ids
        int32_t logprobs "n_logprobs"


cdef extern from "timings.hpp" namespace "aner" nogil:
    ctypedef struct Timings:
        int64_t queue_duration
        int64_t template_duration
        int64_t tokenize_duration
        int64_t context_acquire_duration
        int64_t prefill_duration
        int64_t first_token_duration
        int64_t generation_duration
        int64_t context_clear_duration
        int64_t total_duration
        int64_t input_tokens
        int64_t cached_input_tokens
        int64_t evaluated_input_tokens
        int64_t output_tokens
        int64_t context_pool_reused
        int64_t prefix_cache_hit
        int64_t prefix_cache_entries
        int64_t prefix_cache_retained_entries
        int64_t prefix_cache_retained_tokens
        int64_t threads
        int64_t prefill_threads
        int64_t batch_tokens
        int64_t micro_batch_tokens
        int64_t speculative_proposed_tokens
        int64_t speculative_accepted_tokens
        int64_t speculative_verification_steps
        int64_t batch_max_sequences
        int64_t batch_peak_sequences
        int64_t scheduler_steps
        int64_t batch_decoded_tokens


cdef extern from "wake_pipe.hpp" namespace "aner" nogil:
    cdef cppclass WakePipe:
        @staticmethod
        Result[shared_ptr[WakePipe]] make() noexcept
        void drain() noexcept
        int read_end() noexcept


cdef extern from "generation.hpp" namespace "aner" nogil:
    cdef enum class FinishReason(int32_t):
        stop
        length
    cdef cppclass GenerationRequest:
        vector[Token] prompt
        int32_t n_template
        int32_t max_tokens
        SamplingOptions sampling
        vector[string] stop
        int64_t timeout
        TimePoint start
        int64_t template_duration
        int64_t tokenize_duration
    cdef cppclass GenerationResult:
        string text
        vector[Token] tokens
        vector[Sampled] logprobs
        FinishReason finish_reason
        uint64_t seed
        Timings timings
        int64_t timed_tokens
    cdef cppclass GenerationEvent:
        string text
        bool finished
    cdef cppclass Generation:
        Result[GenerationEvent] next() noexcept
        Result[GenerationEvent] poll() noexcept
        void want_result_only() noexcept
        void set_waker(shared_ptr[WakePipe] waker) noexcept
        void cancel() noexcept
        const GenerationResult & result() noexcept


cdef extern from "scheduler.hpp" namespace "aner" nogil:
    cdef cppclass BatchingSettings:
        int32_t max_sequences
        int64_t step_target
    ctypedef struct SchedulerLoad "aner::Scheduler::Load":
        int32_t n_running
        int32_t n_waiting
        int64_t n_steps
        int64_t last_step
    cdef cppclass Scheduler:
        const ResolvedContext & resolved() noexcept
        const MemoryUse & memory() noexcept
        const BatchingSettings & batching() noexcept
        SchedulerLoad load() noexcept


cdef extern from "context_pool.hpp" namespace "aner" nogil:
    cdef cppclass ContextPool:
        int32_t max_idle() noexcept
        int32_t n_idle() noexcept
        const ContextSettings & settings() noexcept
        const vector[float] & costs() noexcept
        const ResolvedContext & resolved() noexcept
        const MemoryUse & memory() noexcept


cdef extern from "adapter.hpp" namespace "aner" nogil:
    cdef cppclass Adapter:
        const string & path() noexcept
        const string & fingerprint() noexcept
    cdef cppclass EffectiveAdapter:
        shared_ptr[const Adapter] adapter
        float scale


cdef extern from "session.hpp" namespace "aner" nogil:
    cdef cppclass Snapshot "aner::Session::Snapshot":
        vector[Token] tokens
        string memory
    cdef cppclass Session:
        Result[Snapshot] save() noexcept
        Error restore(Snapshot snapshot) noexcept
        const ResolvedContext & resolved() noexcept
        Result[shared_ptr[Generation]] start(GenerationRequest request) noexcept
        Error reset() noexcept
        bool foreign() noexcept


cdef extern from "lease.hpp" namespace "aner" nogil:
    cdef cppclass Lease:
        Result[shared_ptr[const Lease]] with_optimizer(const OptimizerSettings & settings) noexcept
        Result[shared_ptr[const Lease]] with_adapter(const string & path, float scale) noexcept
        Result[shared_ptr[Session]] session() noexcept
        const vector[EffectiveAdapter] & adapters() noexcept
        Result[shared_ptr[const Lease]] with_context_pool(int32_t max_idle) noexcept
        Result[shared_ptr[const Lease]] native_stateless() noexcept
        Result[shared_ptr[Generation]] start(GenerationRequest request) noexcept
        const Model & model() noexcept
        const Profile & profile() noexcept
        const ContextPool & pool() noexcept
        const Scheduler * scheduler() noexcept
        Result[shared_ptr[const Lease]] with_batching(const BatchingSettings & batching) noexcept
        bool foreign() noexcept
    ctypedef shared_ptr[const Lease] LeaseHandle


cdef extern from "draft_replay.hpp" namespace "aner" nogil:
    ctypedef struct RecordedRequest:
        vector[Token] prompt
        vector[Token] output
        vector[Token] ends
        bool ended_by_token
        int32_t max_tokens
        int32_t context
    ctypedef struct DraftScore:
        int64_t proposed_tokens
        int64_t accepted_tokens
        int64_t accepted_from_prompt
        int64_t verification_steps
        vector[int64_t] calls
    Result[DraftScore] replay_drafts(const RecordedRequest & request, int32_t max_draft, const vector[float] & costs) noexcept


cdef extern from "log_ring.hpp" namespace "aner" nogil:
    cdef enum class LogLevel(int32_t):
        debug
        info
        warning
        error
    cdef cppclass LogLine:
        LogLevel level
        string text
    vector[LogLine] drain_log "aner::LogRing::drain"() noexcept


cdef extern from "engine_gate.hpp" namespace "aner" nogil:
    cdef cppclass Milliseconds "std::chrono::milliseconds":
        Milliseconds(int64_t count) noexcept
    bool engine_gate_closed() noexcept
    bool close_engine_gate(Milliseconds patience) noexcept


cdef extern from "llama/load_task.hpp" namespace "aner" nogil:
    cdef enum class LoadPhase(int32_t):
        header
        digest
        probe
        engine
        verify
        context
    cdef cppclass Digest:
        string hex
        int64_t bytes
        int64_t duration
    cdef cppclass AdmittedModel:
        vector[string] paths
        ModelFacts facts
        Digest digest
        bool covered
    cdef cppclass LoadTask:
        LoadTask(string path, LoadSettings settings) noexcept
        void start_admission(bool digests) noexcept
        void start_load(int64_t probe_duration) noexcept
        bool wait(int64_t milliseconds) noexcept
        void cancel() noexcept
        bool foreign() noexcept
        LoadPhase phase() noexcept
        float fraction() noexcept
        Error error() noexcept
        const AdmittedModel & admitted() noexcept
        LeaseHandle lease() noexcept
    Error probe_model(const AdmittedModel & admitted) noexcept
    Result[ModelHandle] open_for_planning(const AdmittedModel & admitted, const LoadSettings & settings) noexcept


cdef extern from "llama/backend.hpp" namespace "aner" nogil:
    cdef cppclass DeviceDescription:
        string name
        string description
        int64_t memory_total
        int64_t memory_free
    vector[DeviceDescription] list_devices() noexcept
    vector[string] compiled_backends() noexcept
    string engine_system_info() noexcept


cdef extern from "build_info.hpp" namespace "aner::build_info" nogil:
    const char * version
    const char * engine_version
    const char * engine_commit
    const char * engine_origin
    const char * compiler
    const char * flags
    const char * build_type
    const char * native
    const char * tile_fix
    const char * patches
