#include "backend.hpp"

#include "../gguf_value.hpp"
#include "../log_ring.hpp"

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace aner {

namespace {

struct BackendName {
    const char * ours;
    const char * registry;
};
constexpr BackendName k_accelerators[] = {{"cuda", "CUDA"}, {"metal", "MTL"}, {"vulkan", "Vulkan"}};
constexpr std::int64_t k_device_margin = 512LL << 20;  // the driver's own memory and pools that grow while running

void on_log(ggml_log_level level, const char * text, void *) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: LogRing::append(LogLevel::error, false, text); break;
        case GGML_LOG_LEVEL_WARN: LogRing::append(LogLevel::warning, false, text); break;
        case GGML_LOG_LEVEL_CONT: LogRing::append(LogLevel::debug, true, text); break;
        case GGML_LOG_LEVEL_INFO: LogRing::append(LogLevel::info, false, text); break;
        default: LogRing::append(LogLevel::debug, false, text); break;
    }
}

// The engine aborts right after: the last words are all that is left, and the one thing that aner ever prints.
void on_abort(const char * message) { std::fprintf(stderr, "aner: the engine stopped on an assertion: %s\n", message); }

bool is_usable(ggml_backend_dev_t device) noexcept {
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU || type == GGML_BACKEND_DEVICE_TYPE_CPU;
}

std::string device_name(const BackendName & backend, std::size_t index) {
    return std::strcmp(backend.ours, "metal") == 0 ? "metal" : std::string(backend.ours) + ":" + std::to_string(index);
}

std::string mib(std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

Error unavailable(const std::string & message) noexcept { return Error{ErrorCode::device_unavailable, message}; }

Result<ChosenDevice> choose_accelerator(const BackendName & backend, std::size_t index, std::int64_t needed_bytes) {
    const std::string name = device_name(backend, index);
    ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.registry);
    if (registry == nullptr) {
        std::string option = std::string("ANER_") + (std::strcmp(backend.ours, "metal") == 0 ? "METAL"
                                                     : std::strcmp(backend.ours, "cuda") == 0 ? "CUDA" : "VULKAN");
        return unavailable("device '" + name + "' was asked for, and this build of aner has no " + backend.ours +
                           " backend: install it with -C cmake.define." + option + "=ON, or ask for 'cpu'");
    }
    const std::size_t n_devices = ggml_backend_reg_dev_count(registry);
    if (index >= n_devices) {
        return unavailable("device '" + name + "' was asked for, and the " + backend.ours + " backend found " +
                           std::to_string(n_devices) + " device(s): check the driver and what the environment hides "
                           "(CUDA_VISIBLE_DEVICES, GGML_VK_VISIBLE_DEVICES), or ask for 'cpu'");
    }
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, index);
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    if (const std::int64_t needed = needed_bytes + k_device_margin; total > 0 && static_cast<std::int64_t>(free) < needed) {
        return unavailable("device '" + name + "' has " + mib(static_cast<std::int64_t>(free)) + " free of " +
                           mib(static_cast<std::int64_t>(total)) + ", and this model with one context needs about " + mib(needed) +
                           " there: use a smaller context, kv_cache_type or model, or ask for 'cpu'");
    }
    return ChosenDevice{name, device};
}

Result<ChosenDevice> choose_automatically(std::int64_t needed_bytes) {
    for (const BackendName & backend : k_accelerators) {
        ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.registry);
        const std::size_t n = registry == nullptr ? 0 : ggml_backend_reg_dev_count(registry);
        for (std::size_t i = 0; i < n; ++i) {
            const auto type = ggml_backend_dev_type(ggml_backend_reg_dev_get(registry, i));
            if (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU) {
                continue;  // a software device is slower than the CPU itself
            }
            Result<ChosenDevice> chosen = choose_accelerator(backend, i, needed_bytes);
            if (!chosen.failed()) {
                return chosen;
            }
        }
    }
    return ChosenDevice{"cpu", nullptr};
}

}  // namespace

void ensure_backend() noexcept {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        llama_backend_init();
    });
}

std::vector<DeviceDescription> list_devices() noexcept {
    ensure_backend();
    std::vector<DeviceDescription> devices;
    if (ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); cpu != nullptr) {
        devices.push_back({"cpu", ggml_backend_dev_description(cpu), -1, -1});
    }
    for (const BackendName & backend : k_accelerators) {
        ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.registry);
        const std::size_t n = registry == nullptr ? 0 : ggml_backend_reg_dev_count(registry);
        for (std::size_t i = 0; i < n; ++i) {
            ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, i);
            std::size_t free = 0;
            std::size_t total = 0;
            if (is_usable(device)) {
                ggml_backend_dev_memory(device, &free, &total);
                devices.push_back({device_name(backend, i), ggml_backend_dev_description(device),
                                   static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)});
            }
        }
    }
    return devices;
}

std::vector<std::string> compiled_backends() noexcept {
    ensure_backend();
    std::vector<std::string> names{"cpu"};
    for (const BackendName & backend : k_accelerators) {
        if (ggml_backend_reg_by_name(backend.registry) != nullptr) {
            names.emplace_back(backend.ours);
        }
    }
    return names;
}

std::string engine_system_info() noexcept {
    ensure_backend();
    return llama_print_system_info();
}

Result<ChosenDevice> choose_device(const std::string & request, std::int64_t needed_bytes) noexcept {
    ensure_backend();
    if (request == "cpu") {
        return ChosenDevice{"cpu", nullptr};
    }
    if (request == "auto") {
        return choose_automatically(needed_bytes);
    }
    const std::size_t colon = request.find(':');
    const std::string kind = request.substr(0, colon) == "mps" ? "metal" : request.substr(0, colon);
    const std::string digits = colon == std::string::npos ? "0" : request.substr(colon + 1);
    const bool is_index = !digits.empty() && digits.size() <= 3 && std::all_of(digits.begin(), digits.end(), [](char c) {
        return c >= '0' && c <= '9';
    });
    for (const BackendName & backend : k_accelerators) {
        if (kind == backend.ours && is_index) {
            return choose_accelerator(backend, static_cast<std::size_t>(std::stoul(digits)), needed_bytes);
        }
    }
    return Error{ErrorCode::configuration, "device is " + quoted(request) + ": it must be auto, cpu, metal (or mps), cuda, cuda:N, "
                                               "vulkan or vulkan:N"};
}

}  // namespace aner
