// The engine as a whole: started once, its logs caught, its devices named.
#pragma once

#include "../errors.hpp"

#include "ggml-backend.h"

#include <string>
#include <vector>

namespace aner {

// Starts the engine on first use; any thread.
void ensure_backend() noexcept;

struct DeviceDescription {
    std::string name;         // as load() takes it: "cpu", "cuda:0", "metal", "vulkan:0"
    std::string description;  // the maker's
    std::int64_t memory_total = -1;
    std::int64_t memory_free = -1;
};

[[nodiscard]] std::vector<DeviceDescription> list_devices() noexcept;
[[nodiscard]] std::vector<std::string> compiled_backends() noexcept;  // "cpu" first
[[nodiscard]] std::string engine_system_info() noexcept;

struct ChosenDevice {
    std::string name;
    ggml_backend_dev_t accelerator = nullptr;  // null: the CPU
};

// `needed_bytes`: weights and one context. Errors: configuration (not a device's name), device_unavailable (which of: not
// compiled in, no driver or no such device, not enough memory). "auto" falls to the CPU, an explicit request never does.
Result<ChosenDevice> choose_device(const std::string & request, std::int64_t needed_bytes) noexcept;

}  // namespace aner
