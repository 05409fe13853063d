#include "regular_file.hpp"

#include "gguf_value.hpp"

#include <cerrno>
#include <fcntl.h>
#include <new>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace aner {

namespace {

std::string reason(int code) {
    return std::generic_category().message(code);
}

const char * kind_of(mode_t mode) noexcept {
    switch (mode & S_IFMT) {
        case S_IFDIR: return "a directory";
        case S_IFIFO: return "a pipe";
        case S_IFSOCK: return "a socket";
        case S_IFCHR:
        case S_IFBLK: return "a device";
        default: return "not a regular file";
    }
}

Error not_opened(const std::string & path, int code) {
    if (code == ENAMETOOLONG) {
        return Error{ErrorCode::model_not_found,
                     "no file: a path of " + std::to_string(path.size()) + " bytes is too long, " + quoted(path)};
    }
    if (code == ENOENT || code == ENOTDIR || code == ELOOP) {
        return Error{ErrorCode::model_not_found, "no file at '" + path + "'"};
    }
    if (code == ENXIO) {  // how a socket answers
        return Error{ErrorCode::model_load, "'" + path + "' is a socket or a device, not a model file"};
    }
    return Error{ErrorCode::model_load, "cannot open '" + path + "': " + reason(code)};
}

}  // namespace

RegularFile::RegularFile(int fd, std::uint64_t size, std::string path) noexcept
    : fd_(fd), size_(size), path_(std::move(path)) {}

RegularFile::RegularFile(RegularFile && other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

RegularFile & RegularFile::operator=(RegularFile && other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(size_, other.size_);
    std::swap(path_, other.path_);
    return *this;
}

RegularFile::~RegularFile() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

Result<RegularFile> RegularFile::open(const std::string & path) noexcept try {
    if (path.empty() || path.find('\0') != std::string::npos) {
        return Error{ErrorCode::model_not_found, "the path is empty or holds a NUL byte"};
    }
    // O_NONBLOCK: a pipe without a writer would hold the open, and with it the caller, forever.
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        return not_opened(path, errno);
    }
    RegularFile file{fd, 0, path};
    struct stat status = {};
    if (::fstat(fd, &status) != 0) {
        return not_opened(path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
        return Error{ErrorCode::model_load, "'" + path + "' is " + kind_of(status.st_mode) + ", not a model file"};
    }
    file.size_ = static_cast<std::uint64_t>(status.st_size);
    return file;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error RegularFile::read_at(std::uint64_t offset, void * to, std::size_t n_bytes) const noexcept try {
    auto * next = static_cast<char *>(to);
    std::size_t left = n_bytes;
    while (left > 0) {
        const ssize_t n = ::pread(fd_, next, left, static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return Error{ErrorCode::model_load, "cannot read '" + path_ + "': " + reason(errno)};
        }
        if (n == 0) {
            return Error{ErrorCode::model_load, "'" + path_ + "' ends at byte " + std::to_string(offset) + ", " +
                                                    std::to_string(left) + " bytes before what it should hold"};
        }
        next += n;
        left -= static_cast<std::size_t>(n);
        offset += static_cast<std::uint64_t>(n);
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error RegularFile::check_size() const noexcept try {
    struct stat status = {};
    if (::fstat(fd_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size_) {
        return Error{ErrorCode::model_load, "'" + path_ + "' changed its size while it was read"};
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner
