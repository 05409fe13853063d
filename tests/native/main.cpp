// Lists the cases (--list: "name<TAB>contract ids" a line) or runs the named ones, all without a name.
#include "check.hpp"

#include <cstring>
#include <iostream>

int main(int argc, char ** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        for (const auto & one : aner::testing::cases()) {
            std::cout << one.name << '\t' << one.contract << '\n';
        }
        return 0;
    }
    int failed = 0;
    for (const auto & one : aner::testing::cases()) {
        bool chosen = argc == 1;
        for (int i = 1; i < argc; ++i) {
            chosen = chosen || std::strcmp(argv[i], one.name) == 0;
        }
        if (!chosen) {
            continue;
        }
        try {
            one.run();
        } catch (const std::exception & error) {
            ++failed;
            std::cerr << one.name << ": " << error.what() << '\n';
        }
    }
    return failed == 0 ? 0 : 1;
}
