// A LoRA adapter that was loaded beside resident weights, and how strongly a lease applies it.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace aner {

// Opaque beyond its identity; lives as long as the handles to it, and keeps the weights alive.
class Adapter {
public:
    virtual ~Adapter() = default;
    [[nodiscard]] virtual const std::string & path() const noexcept = 0;
    [[nodiscard]] virtual const std::string & fingerprint() const noexcept = 0;  // SHA-256 of the content, hex
};

struct EffectiveAdapter {
    std::shared_ptr<const Adapter> adapter;
    float scale = 1.0F;
};

using EffectiveAdapters = std::vector<EffectiveAdapter>;  // in the order in which they were added

}  // namespace aner
