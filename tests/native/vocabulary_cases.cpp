#include "check.hpp"
#include "vocabulary.hpp"

#include <limits>

using namespace aner;
using namespace aner::testing;
using namespace std::string_view_literals;

namespace {

class Pieces final : public Vocabulary {
public:
    explicit Pieces(const std::vector<std::string_view> & pieces) {
        for (const std::string_view piece : pieces) {
            add_piece(piece);
        }
    }
    Result<std::vector<Token>> tokenize(std::string_view, bool, bool, const ByteSpans &) const noexcept override {
        return std::vector<Token>{};
    }
};

}  // namespace

ANER_CASE("", the_piece_of_a_token_is_the_bytes_that_were_added_for_it) {
    const std::vector<std::string_view> pieces = {"", "a", "\xE6\xAD"sv, "nul\0inside"sv, "", "longest of all"};
    const Pieces vocabulary(pieces);
    CHECK_EQUAL(vocabulary.n_tokens(), 6);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        CHECK(vocabulary.piece(static_cast<Token>(i)) == pieces[i]);
    }
    CHECK_EQUAL(vocabulary.longest_piece(), 14U);
}

ANER_CASE("", a_vocabulary_contains_the_ids_from_0_to_its_size) {
    const Pieces vocabulary({"a", "b", "c"});
    for (const Token token : {-1, 3, std::numeric_limits<Token>::min(), std::numeric_limits<Token>::max()}) {
        CHECK(!vocabulary.contains(token));
    }
    for (const Token token : {0, 1, 2}) {
        CHECK(vocabulary.contains(token));
    }
}

ANER_CASE("", an_empty_vocabulary_has_no_tokens_and_no_special_ones) {
    const Pieces vocabulary({});
    CHECK_EQUAL(vocabulary.n_tokens(), 0);
    CHECK(!vocabulary.contains(0));
    CHECK_EQUAL(vocabulary.bos(), -1);
    CHECK_EQUAL(vocabulary.eos(), -1);
    CHECK(!vocabulary.adds_bos());
    CHECK(vocabulary.end_of_generation().empty() && vocabulary.control().empty());
}
