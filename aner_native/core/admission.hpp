// The right to run one request on a lease. Not getting one is the busy error; its destructor gives the right back.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace aner {

class Admission {
public:
    explicit Admission(std::shared_ptr<std::atomic<bool>> taken) noexcept : taken_(std::move(taken)) {}
    Admission(Admission && other) noexcept = default;
    Admission & operator=(Admission &&) = delete;
    ~Admission() {
        if (taken_ != nullptr) {
            taken_->store(false, std::memory_order_release);
        }
    }

private:
    std::shared_ptr<std::atomic<bool>> taken_;
};

}  // namespace aner
