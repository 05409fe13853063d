// A C++ program as an embedder writes it: loads a model, makes siblings, submits from several threads, prints what came.
#include <aner/aner.hpp>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

int fail(const aner::Error & error) {
    std::fprintf(stderr, "%s: %s\n", aner::name_of(error.code()), error.message().c_str());
    return 1;
}

// Runs one request on a lease of its own; the token ids of its answer, or an error.
aner::Error answer(const aner::LeaseHandle & serving, const std::string & text, std::vector<aner::Token> & tokens) {
    aner::LeaseHandle mine;
    aner::GenerationRequest request;
    request.max_tokens = 12;
    request.sampling.ignore_eos = true;
    std::shared_ptr<aner::Generation> generation;
    aner::Error error = serving->native_stateless().into(mine);
    if (!error.failed()) {
        error = serving->model().vocabulary().tokenize(text, true, false, {}).into(request.prompt);
    }
    if (!error.failed()) {
        error = mine->start(request).into(generation);
    }
    aner::GenerationEvent event;
    while (!error.failed() && !event.finished) {
        error = generation->next().into(event);
    }
    if (!error.failed()) {
        tokens = generation->result().tokens;
    }
    return error;
}

}  // namespace

int main(int argc, char ** argv) {
    aner::LoadSettings settings;
    settings.context = 256;
    settings.reproducible = true;
    aner::LeaseHandle model;
    aner::LeaseHandle serving;
    if (aner::Error error = aner::load(argc > 1 ? argv[1] : "", settings).into(model); error.failed()) {
        return fail(error);
    }
    if (aner::Error error = model->with_batching({3}).into(serving); error.failed()) {
        return fail(error);
    }
    model.reset();  // the scheduler keeps the weights
    const std::vector<std::string> prompts{"Hello", "one two three", "a", "The quick brown fox"};
    std::vector<std::vector<aner::Token>> answers(prompts.size());
    std::vector<aner::Error> errors(prompts.size());
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        callers.emplace_back([&, i] { errors[i] = answer(serving, prompts[i], answers[i]); });
    }
    for (std::thread & caller : callers) {
        caller.join();
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        if (errors[i].failed()) {
            return fail(errors[i]);
        }
        for (const aner::Token token : answers[i]) {
            std::printf("%d ", token);
        }
        std::printf("\n");
    }
    return 0;
}
