// aner for C++ programs: what the Python package stands on. Link the CMake target aner_embed.
//
//   aner::LeaseHandle model, serving;
//   if (aner::Error error = aner::load("model.gguf", {}).into(model); error.failed()) { ... error.message() ... }
//   aner::Error made = model->with_batching({4}).into(serving);
//   // on each thread, with a sibling of its own:
//   aner::LeaseHandle mine;
//   aner::Error sibling = serving->native_stateless().into(mine);
//   aner::GenerationRequest request;                 // prompt tokens, max_tokens, sampling, stop, timeout
//   std::shared_ptr<aner::Generation> generation;
//   aner::Error started = mine->start(request).into(generation);
//   while (...) generation->next();                  // text as it comes; an event says when it has finished
//   generation->result();
//
// Every function is noexcept and reports errors as values; each header says which. lease.hpp has the builders, generation.hpp the
// request and its result, vocabulary.hpp (lease->model().vocabulary()) text to tokens and back.
#pragma once

#include "lease.hpp"

#include <string>

namespace aner {

// Checks the file, digests it, loads it and digests it again; blocks until then. A model of an architecture that no test of aner
// covers is refused here: the Python package tries those in a child process first.
// Errors: as llm.load (docs/errors.md); unsupported_operation for such an architecture.
Result<LeaseHandle> load(const std::string & path, const LoadSettings & settings) noexcept;

}  // namespace aner
