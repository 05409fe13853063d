// A file that is read by position. Opening one never blocks and never touches a device: pipes, sockets and devices are refused.
#pragma once

#include "errors.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace aner {

class RegularFile {
public:
    // Errors: model_not_found (nothing at the path), model_load (not a regular file, or not readable), out_of_memory.
    static Result<RegularFile> open(const std::string & path) noexcept;

    RegularFile(RegularFile && other) noexcept;
    RegularFile & operator=(RegularFile && other) noexcept;
    ~RegularFile();

    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }  // bytes, when it was opened
    [[nodiscard]] const std::string & path() const noexcept { return path_; }

    // Exactly n_bytes from `offset`. Errors: model_load (IO error, or the file ends before).
    Error read_at(std::uint64_t offset, void * to, std::size_t n_bytes) const noexcept;

    // Errors: model_load when the size is no longer the one it was opened with.
    Error check_size() const noexcept;

private:
    RegularFile(int fd, std::uint64_t size, std::string path) noexcept;

    int fd_ = -1;
    std::uint64_t size_ = 0;
    std::string path_;
};

}  // namespace aner
