// A temporary folder that goes away with the case.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <string_view>
#include <system_error>

namespace aner::testing {

class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "aner-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            throw std::runtime_error("no temporary folder");
        }
        path_ = name;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder &) = delete;
    Folder & operator=(const Folder &) = delete;

    [[nodiscard]] std::string file(const std::string & name) const { return (path_ / name).string(); }

    std::string write(const std::string & name, std::string_view content) const {
        std::ofstream(file(name), std::ios::binary) << content;
        return file(name);
    }

private:
    std::filesystem::path path_;
};

}  // namespace aner::testing
