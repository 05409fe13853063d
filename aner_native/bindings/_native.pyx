# Over its ceiling of 500 lines: one extension is one Cython module, and its handle classes share their converters.
# The binding: convert, drop the GIL once, call, check, wrap. No decision about inference is taken here.
from cython.operator cimport dereference
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool
from libcpp.map cimport map as cpp_map
from libcpp.memory cimport shared_ptr, make_unique, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.utility cimport move, pair
from libcpp.vector cimport vector

import threading

cimport aner_core as core


# -- errors -----------------------------------------------------------------------------------------------------------------

cdef dict _exceptions = {}


def error_codes():
    """Names of all error codes of the native core, by number, ``ok`` included."""
    return {code: core.error_name(<core.ErrorCode> <int32_t> code).decode() for code in range(<int32_t> core.ErrorCode.count_)}


def set_exceptions(dict table not None):
    """Register the exception class for each error code's name; ``aner.errors`` calls this once."""
    _exceptions.clear()
    _exceptions.update(table)


cdef int check(const core.Error & error) except -1:
    if not error.failed():
        return 0
    if error.code() == core.ErrorCode.cancelled and core.engine_gate_closed():
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit  # the interpreter is leaving: a thread that is still here ends, and without a word
    name = core.error_name(error.code()).decode()
    raise _exceptions[name](error.message().decode("utf-8", "replace"))


cdef str text_of(const string & value):
    return value.decode("utf-8", "replace")


# -- the library as a whole ----------------------------------------------------------------------------------------------------

def build_info():
    """How this extension was built: version, engine pin, compiler, flags, backends."""
    cdef vector[string] backends
    with nogil:
        backends = core.compiled_backends()
    return {
        "version": core.version.decode(),
        "engine_version": core.engine_version.decode(),
        "engine_commit": core.engine_commit.decode(),
        "engine_origin": core.engine_origin.decode(),
        "compiler": core.compiler.decode(),
        "flags": core.flags.decode().strip(),
        "build_type": core.build_type.decode(),
        "native": core.native.decode() == "ON",
        "tile_fix": core.tile_fix.decode() == "ON",
        "patches": [name for name in core.patches.decode().split(";") if name],
        "backends": [text_of(one) for one in backends],
    }


def system_info():
    """The engine's own line about the CPU features and options it was compiled with."""
    cdef string info
    with nogil:
        info = core.engine_system_info()
    return text_of(info)


def devices():
    """Devices that ``load(device=)`` can name, with their memory in bytes; -1 where it is not known."""
    cdef vector[core.DeviceDescription] found
    with nogil:
        found = core.list_devices()
    return [{"name": text_of(one.name), "description": text_of(one.description),
             "memory_total": one.memory_total, "memory_free": one.memory_free} for one in found]


def usable_cpus():
    """CPUs that this process may use: its affinity, then its control group's quota."""
    return core.usable_cpus()


def available_memory():
    """Bytes that this process could still take: the host's, or what the control group leaves if less; -1: not known."""
    return core.available_memory()


def drain_log():
    """Take the engine's log lines since the last call: ``(level, text)``, level 0 debug .. 3 error."""
    cdef vector[core.LogLine] lines
    with nogil:
        lines = core.drain_log()
    return [(<int32_t> line.level, text_of(line.text)) for line in lines]


def close_engine_gate(int64_t patience_ms):
    """Refuse further engine calls and wait for the running ones; true when none is left. Called once, at exit."""
    cdef bool empty
    with nogil:
        empty = core.close_engine_gate(core.Milliseconds(patience_ms))
    return empty


# -- loading -----------------------------------------------------------------------------------------------------------------

cdef tuple _PHASES = ("header", "digest", "probe", "engine", "verify", "context")


cdef class LoadTask:
    """One load: ``admit()``, then ``load()``. Signals are looked at and ``progress(phase, fraction)`` is called meanwhile."""

    cdef unique_ptr[core.LoadTask] task
    cdef core.LoadSettings settings
    cdef int32_t phase  # the last one that was reported, and how much of it
    cdef float fraction

    def __init__(self, bytes path not None, *, int32_t context, bytes device not None, bytes kv_cache_type not None,
                 bytes flash_attention not None, bool reproducible, bool mapped, bytes expected_sha256 not None):
        cdef core.LoadSettings settings
        settings.context = context
        settings.device = device
        check(core.kv_type_named(kv_cache_type).into(settings.kv_type))
        check(core.flash_attention_named(flash_attention).into(settings.flash_attention))
        settings.reproducible = reproducible
        settings.mapped = mapped
        settings.expected_sha256 = expected_sha256
        self.settings = settings
        self.task = make_unique[core.LoadTask](<string> path, settings)

    def admit(self, progress, bool digests=True):
        """Check the headers and digest the content. Returns the facts of the model; ``covered`` says if it may load directly."""
        with nogil:
            dereference(self.task).start_admission(digests)
        self._wait(progress)
        facts = facts_of(dereference(self.task).admitted().facts)
        facts["covered"] = dereference(self.task).admitted().covered
        facts["fingerprint"] = text_of(dereference(self.task).admitted().digest.hex)
        facts["content_bytes"] = dereference(self.task).admitted().digest.bytes
        return facts

    def load(self, int64_t probe_ns, progress):
        """Load what was admitted, digest it again and make the first context. Returns a NativeLease."""
        with nogil:
            dereference(self.task).start_load(probe_ns)
        self._wait(progress)
        return wrap_lease(core.Error(), dereference(self.task).lease())

    def plan(self):
        """The admitted model without its weights, to be asked what contexts of it would occupy. Returns a NativePlan."""
        cdef NativePlan wrapped = NativePlan.__new__(NativePlan)
        cdef core.Error error
        with nogil:
            error = core.open_for_planning(dereference(self.task).admitted(), self.settings).into(wrapped.model)
        check(error)
        return wrapped

    def probe(self):
        """Try the admitted model in this process, which may die of it: only ever called in a child process."""
        cdef core.Error error
        with nogil:
            error = core.probe_model(dereference(self.task).admitted())
        check(error)

    cdef int _wait(self, progress) except -1:
        cdef bool finished = False
        cdef core.Error error
        try:
            while not finished:
                with nogil:
                    finished = dereference(self.task).wait(50)
                PyErr_CheckSignals()
                if progress is not None:
                    self._report(progress, finished)
        except BaseException:
            dereference(self.task).cancel()
            while not finished:
                with nogil:
                    finished = dereference(self.task).wait(1000)
            raise
        error = dereference(self.task).error()
        return check(error)

    cdef int _report(self, progress, bool finished) except -1:
        # Every phase up to the one that runs, those that came and went between two looks included; no fraction goes down.
        cdef int32_t running = <int32_t> dereference(self.task).phase()
        cdef float fraction = dereference(self.task).fraction()
        if finished and not dereference(self.task).error().failed():
            fraction = 1.0
        while self.phase < running:
            progress(_PHASES[self.phase], 1.0)
            self.phase += 1
            self.fraction = 0.0
        self.fraction = max(self.fraction, fraction)
        progress(_PHASES[self.phase], self.fraction)

    def __dealloc__(self):
        if self.task.get() != NULL and dereference(self.task).foreign():
            self.task.release()  # abandoned: its thread is in the parent
            return
        with nogil:
            self.task.reset()


cdef class NativePlan:
    """A model without its weights."""

    cdef core.ModelHandle model  # never empty once wrapped

    def __init__(self):
        raise TypeError("a NativePlan comes from a LoadTask")

    def context(self, int32_t context, bytes kv_cache_type not None, bytes flash_attention not None, tuple settings not None,
                int32_t max_sequences):
        """What ``NativeLease.context`` would say of a lease with these settings; ``settings`` as in ``with_optimizer``."""
        cdef core.LoadSettings load = self.model.get().info().settings
        cdef core.OptimizerSettings s
        cdef core.PlannedContext planned
        cdef core.Error error
        load.context = context
        check(core.kv_type_named(kv_cache_type).into(load.kv_type))
        check(core.flash_attention_named(flash_attention).into(load.flash_attention))
        (s.threads, s.prefill_threads, s.batch_tokens, s.micro_batch_tokens, s.prefix_cache_entries, s.prefix_cache_tokens,
         s.speculative_tokens) = settings
        with nogil:
            error = core.plan_context(dereference(self.model), load, s, max_sequences).into(planned)
        check(error)
        return {**planned.resolved, **planned.memory, "compute_written_bytes": planned.written,
                "max_idle_contexts": planned.retained, "tables_bytes": planned.tables}

    def __dealloc__(self):
        with nogil:
            self.model.reset()


cdef dict facts_of(const core.ModelFacts & facts):
    cdef dict types = {}
    cdef cpp_map[string, core.TypeUse] tensor_types = facts.tensor_types  # a copy: Cython cannot iterate const containers
    for one in tensor_types:
        types[text_of(one.first)] = {"tensors": one.second.n_tensors, "bytes": one.second.bytes}
    return {
        "architecture": text_of(facts.architecture), "name": text_of(facts.name),
        "layers": facts.n_layer, "embedding": facts.n_embd, "vocabulary": facts.n_vocab,
        "vocabulary_kind": text_of(facts.vocabulary), "context_train": facts.context_train,
        "heads": list(facts.n_head), "kv_heads": list(facts.n_head_kv),
        "key_head_dimension": facts.head_dim_k, "value_head_dimension": facts.head_dim_v,
        "sliding_window": facts.sliding_window, "chat_template": text_of(facts.chat_template),
        "tensor_types": types, "tensor_bytes": facts.tensor_bytes, "parameters": facts.n_parameters,
    }


# -- a lease -----------------------------------------------------------------------------------------------------------------

cdef tuple _MEMORY_KINDS = ("attention", "sliding_window", "recurrent", "hybrid")


cdef NativeLease wrap_lease(const core.Error & error, core.LeaseHandle lease):
    check(error)
    cdef NativeLease wrapped = NativeLease.__new__(NativeLease)
    wrapped.lease = lease
    return wrapped


cdef class NativeLease:
    """One resident model, one immutable profile, one pool of contexts, one request at a time."""

    cdef core.LeaseHandle lease  # never empty once wrapped

    def __init__(self):
        raise TypeError("a NativeLease comes from a LoadTask or from another lease")

    def info(self):
        """Facts, identity and load settings of the resident model."""
        cdef const core.ModelInfo * info = &self.lease.get().model().info()
        found = facts_of(info.facts)
        found.update({
            "path": text_of(info.path), "fingerprint": text_of(info.fingerprint), "description": text_of(info.description),
            "device": text_of(info.device), "memory_kind": _MEMORY_KINDS[<int32_t> info.memory_kind],
            "context": info.settings.context, "requested_device": text_of(info.settings.device),
            "kv_cache_type": core.kv_type_name(info.settings.kv_type).decode(),
            "flash_attention": core.policy_name(info.settings.flash_attention).decode(),
            "reproducible": info.settings.reproducible, "mapped": info.settings.mapped,
        })
        return found

    def load_summary(self):
        """Nanoseconds and bytes of the load; -1 for what was not needed."""
        cdef core.LoadSummary summary = self.lease.get().model().info().summary
        return {"content_bytes": summary.digest_before_bytes, **summary}

    def profile(self):
        """The frozen settings, by the names of ``with_optimizer``, and those of the other builders."""
        cdef const core.Profile * profile = &self.lease.get().profile()
        cdef core.OptimizerSettings settings = profile.optimizer
        return {**settings, "max_idle_contexts": profile.max_idle_contexts, "max_sequences": profile.max_sequences,
                "step_target_ns": profile.step_target}

    def context(self):
        """One context as the engine resolved and allocated it: positions, cells, threads, bytes."""
        cdef const core.ContextPool * pool = &self.lease.get().pool()
        if self.lease.get().scheduler() != NULL:
            return self._shared_context()
        cdef core.ResolvedContext resolved = pool.resolved()
        cdef core.MemoryUse memory = pool.memory()
        return {**resolved, **memory, "idle_contexts": pool.n_idle(), "max_idle_contexts": pool.max_idle(),
                "call_costs": list(pool.costs())[1:]}

    cdef dict _shared_context(self):
        cdef core.ResolvedContext resolved = self.lease.get().scheduler().resolved()
        cdef core.MemoryUse memory = self.lease.get().scheduler().memory()
        return {**resolved, **memory, "idle_contexts": 0, "max_idle_contexts": 0, "call_costs": []}

    def scheduler(self):
        """Identity of the scheduler that this lease shares with its siblings; 0: none."""
        return <size_t> self.lease.get().scheduler()

    def load(self):
        """What the scheduler does now: requests running and waiting, steps so far, the last one's nanoseconds."""
        if self.lease.get().scheduler() == NULL:
            return {}
        return self.lease.get().scheduler().load()

    def vocabulary(self):
        """Special tokens: ids (-1 where there is none), texts of control tokens, ids that end a generation."""
        cdef const core.Vocabulary * v = &self.lease.get().model().vocabulary()
        cdef vector[pair[string, core.Token]] control_texts = v.control()
        control = {}
        for one in control_texts:
            control[one.first.decode("utf-8", "replace")] = one.second
        return {"tokens": v.n_tokens(), "bos": v.bos(), "eos": v.eos(), "adds_bos": v.adds_bos(),
                "end_of_generation": list(v.end_of_generation()), "control": control, "longest_piece": v.longest_piece()}

    def tokenize(self, bytes text not None, bool add_bos, bool parse_control, core.ByteSpans literal):
        """Token ids of UTF-8 bytes; ``literal``: half-open byte ranges in which control texts are only text."""
        cdef vector[core.Token] tokens
        cdef string_view view = string_view(text, len(text))
        cdef core.Error error
        with nogil:
            error = self.lease.get().model().vocabulary().tokenize(view, add_bos, parse_control, literal).into(tokens)
        check(error)
        return list(tokens)

    def piece(self, core.Token token):
        """Bytes that one token adds to a text; empty for control tokens. ``IndexError`` outside the vocabulary."""
        cdef string_view piece
        if not self.lease.get().model().vocabulary().contains(token):
            raise IndexError(f"token {token} is not in the vocabulary")
        piece = self.lease.get().model().vocabulary().piece(token)
        return piece.data()[:piece.size()]

    def with_context_pool(self, int32_t max_idle):
        """A lease with a fresh pool that keeps at most ``max_idle`` contexts."""
        cdef core.LeaseHandle derived
        cdef core.Error error
        with nogil:
            error = self.lease.get().with_context_pool(max_idle).into(derived)
        return wrap_lease(error, derived)

    def with_optimizer(self, tuple settings not None):
        """A lease with the seven settings of an optimizer profile, in their order, and a fresh pool."""
        cdef core.LeaseHandle derived
        cdef core.OptimizerSettings s
        cdef core.Error error
        (s.threads, s.prefill_threads, s.batch_tokens, s.micro_batch_tokens, s.prefix_cache_entries, s.prefix_cache_tokens,
         s.speculative_tokens) = settings
        with nogil:
            error = self.lease.get().with_optimizer(s).into(derived)
        return wrap_lease(error, derived)

    def with_adapter(self, string path, float scale):
        """A lease with one more LoRA adapter and a fresh pool."""
        cdef core.LeaseHandle derived
        cdef core.Error error
        with nogil:
            error = self.lease.get().with_adapter(path, scale).into(derived)
        return wrap_lease(error, derived)

    def with_batching(self, int32_t max_sequences, int64_t step_target_ns):
        """A lease whose siblings share one context of so many slots."""
        cdef core.LeaseHandle derived
        cdef core.BatchingSettings settings
        cdef core.Error error
        settings.max_sequences = max_sequences
        settings.step_target = step_target_ns
        with nogil:
            error = self.lease.get().with_batching(settings).into(derived)
        return wrap_lease(error, derived)

    def adapters(self):
        """The effective adapters, in order."""
        cdef vector[core.EffectiveAdapter] all = self.lease.get().adapters()
        return [{"path": text_of(one.adapter.get().path()), "fingerprint": text_of(one.adapter.get().fingerprint()),
                 "scale": one.scale} for one in all]

    def session(self):
        """A conversation with a context of its own."""
        cdef NativeSession wrapped = NativeSession.__new__(NativeSession)
        cdef core.Error error
        with nogil:
            error = self.lease.get().session().into(wrapped.session)
        check(error)
        return wrapped

    def native_stateless(self):
        """A sibling with a caller of its own that shares this lease's pool."""
        cdef core.LeaseHandle sibling
        cdef core.Error error
        with nogil:
            error = self.lease.get().native_stateless().into(sibling)
        return wrap_lease(error, sibling)

    def foreign(self):
        """True in a forked child of the process that loaded the model."""
        return self.lease.get().foreign()

    def start(self, list prompt not None, dict options not None, Clock clock not None, dict measured not None):
        """Start a request with validated types; ranges are the core's business. Returns a NativeGeneration."""
        cdef core.GenerationRequest request
        cdef NativeGeneration wrapped = NativeGeneration.__new__(NativeGeneration)
        cdef core.Error error
        fill_request(&request, prompt, options, clock, measured)
        with nogil:
            error = self.lease.get().start(move(request)).into(wrapped.generation)
        check(error)
        return wrapped

    def __dealloc__(self):
        # The last lease frees the weights: never while holding the GIL.
        with nogil:
            self.lease.reset()


cdef class NativeSession:
    """A conversation's own context: one turn at a time."""

    cdef shared_ptr[core.Session] session  # never empty once wrapped

    def __init__(self):
        raise TypeError("a NativeSession comes from NativeLease.session")

    def start(self, list prompt not None, dict options not None, Clock clock not None, dict measured not None):
        """Start one turn over the whole rendered conversation. Returns a NativeGeneration."""
        cdef core.GenerationRequest request
        cdef NativeGeneration wrapped = NativeGeneration.__new__(NativeGeneration)
        cdef core.Error error
        fill_request(&request, prompt, options, clock, measured)
        with nogil:
            error = self.session.get().start(move(request)).into(wrapped.generation)
        check(error)
        return wrapped

    def reset(self):
        """Forget everything that is in memory."""
        cdef core.Error error
        with nogil:
            error = self.session.get().reset()
        check(error)

    def save(self):
        """``(token ids, KV bytes)`` of what is in memory; no bytes for no tokens."""
        cdef core.Snapshot snapshot
        cdef core.Error error
        with nogil:
            error = self.session.get().save().into(snapshot)
        check(error)
        return list(snapshot.tokens), <bytes> snapshot.memory

    def restore(self, list tokens not None, bytes memory not None):
        """Take back what ``save`` gave, into a session that holds nothing yet."""
        cdef core.Snapshot snapshot
        cdef core.Error error
        snapshot.tokens = tokens
        snapshot.memory = memory
        with nogil:
            error = self.session.get().restore(move(snapshot))
        check(error)

    def flash_attention(self):
        """As resolved for this session's context; decides how V is laid out in a snapshot."""
        return self.session.get().resolved().flash_attention

    def foreign(self):
        """True in a forked child of the process that made the session."""
        return self.session.get().foreign()

    def __dealloc__(self):
        with nogil:
            self.session.reset()


cdef int fill_request(core.GenerationRequest * request, list prompt, dict options, Clock clock, dict measured) except -1:
    request.prompt = prompt
    request.n_template = measured["template_tokens"]
    request.max_tokens = options["max_tokens"]
    request.stop = options["stop"]
    request.timeout = options["timeout_ns"]
    request.start = clock.start
    request.template_duration = measured["template_ns"]
    request.tokenize_duration = measured["tokenize_ns"]
    request.sampling = options
    return 0


cdef class Clock:
    """The moment a request began, on the core's clock."""

    cdef core.TimePoint start

    def __cinit__(self):
        self.start = core.now()


# -- drafts --------------------------------------------------------------------------------------------------------------------

def replay_drafts(core.RecordedRequest recorded, int32_t max_draft, vector[float] costs):
    """Counters of a recorded request's drafts. ``costs[n]``: time of a call of n rows."""
    cdef core.DraftScore score
    cdef core.Error error
    with nogil:
        error = core.replay_drafts(recorded, max_draft, costs).into(score)
    check(error)
    return score


# -- a running request ---------------------------------------------------------------------------------------------------------

cdef class WakePipe:
    """Wakes an event loop: its file descriptor becomes readable whenever a request that it was set for has news."""

    cdef shared_ptr[core.WakePipe] pipe

    def __init__(self):
        cdef core.Error error
        with nogil:
            error = core.WakePipe.make().into(self.pipe)
        check(error)

    def fileno(self):
        return self.pipe.get().read_end()

    def drain(self):
        """Take what was written: call it before looking for news."""
        self.pipe.get().drain()


cdef class NativeGeneration:
    """A running request: ``next()`` until it says finished, then ``result()``."""

    cdef shared_ptr[core.Generation] generation

    def __init__(self):
        raise TypeError("a NativeGeneration comes from NativeLease.start")

    def next(self):
        """Run or await one step. Returns ``(text, finished)``; the text may be empty."""
        cdef core.GenerationEvent event
        cdef core.Error error
        with nogil:
            error = self.generation.get().next().into(event)
        check(error)
        PyErr_CheckSignals()
        return text_of(event.text), event.finished

    def poll(self):
        """The same without waiting; no text and not finished: nothing came."""
        cdef core.GenerationEvent event
        cdef core.Error error
        with nogil:
            error = self.generation.get().poll().into(event)
        check(error)
        return text_of(event.text), event.finished

    def set_waker(self, WakePipe waker):
        """Have ``waker`` woken whenever something can be taken; None: nobody."""
        cdef shared_ptr[core.WakePipe] pipe
        if waker is not None:
            pipe = waker.pipe
        with nogil:
            self.generation.get().set_waker(pipe)

    def want_result_only(self):
        """No more pieces are taken, only the result: the request does not wait for its reader."""
        with nogil:
            self.generation.get().want_result_only()

    def run(self):
        """Run to the end, looking at signals after each step. Returns ``("", True)``, as ``next`` would at the end."""
        cdef core.GenerationEvent event
        cdef core.Error error
        self.generation.get().want_result_only()
        while not event.finished:
            with nogil:
                error = self.generation.get().next().into(event)
            check(error)
            PyErr_CheckSignals()
        return "", True

    def cancel(self):
        """Ask the request to end; from any thread, any number of times."""
        with nogil:
            self.generation.get().cancel()

    def result(self):
        """Everything about a finished request, as plain values."""
        cdef const core.GenerationResult * r = &self.generation.get().result()
        cdef core.Timings timings = r.timings
        cdef vector[core.Sampled] logprobs = r.logprobs
        return {
            "text": text_of(r.text), "tokens": list(r.tokens), "seed": r.seed, "timed_tokens": r.timed_tokens,
            "finish_reason": "stop" if r.finish_reason == core.FinishReason.stop else "length",
            "timings": timings,
            "logprobs": [(one.token, one.logprob, [(top.token, top.logprob) for top in one.top]) for one in logprobs],
        }

    def __dealloc__(self):
        with nogil:
            self.generation.reset()
