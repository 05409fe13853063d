// The engine's load behind the Model seam.
#pragma once

#include "../model.hpp"
#include "../model_file.hpp"

namespace aner {

// Loads a model whose files were admitted, on the device that `settings` asks for, and digests the content again.
// `start`: of the whole load, for the summary. `probe_duration`: what trying it in a child process took, -1 if that was not needed.
// Errors: configuration, device_unavailable, model_load, fingerprint_mismatch, out_of_memory, cancelled.
Result<ModelHandle> load_model(const AdmittedModel & admitted, const LoadSettings & settings, Clock::time_point start,
                               Nanoseconds probe_duration, LoadProgress & progress) noexcept;

// The model without its weights: the contexts that it makes say what they would occupy on a CPU, byte by byte, and evaluate nothing.
// Of `settings`, reproducible and mapped count here. Recurrent states are really allocated. Errors: model_load, out_of_memory.
Result<ModelHandle> open_for_planning(const AdmittedModel & admitted, const LoadSettings & settings) noexcept;

// What the child process does with a model that no test of ours covers: read its vocabulary, then make a small context without
// allocating weights, which builds its graphs. The process may die of it. Errors: model_load.
Error probe_model(const AdmittedModel & admitted) noexcept;

}  // namespace aner
