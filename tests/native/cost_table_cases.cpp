#include "check.hpp"
#include "cost_table.hpp"

using namespace aner;

ANER_CASE("S10", costs_are_relative_to_one_row_with_straight_lines_between_measured_sizes) {
    CHECK((cost_table({1, 2, 4, 8}, {10, 15, 20, 40}) == CostTable{0.0F, 1.0F, 1.5F, 1.75F, 2.0F, 2.5F, 3.0F, 3.5F, 4.0F}));
    CHECK((cost_table({1}, {10}) == CostTable{0.0F, 1.0F}));
}

ANER_CASE("S10", a_size_that_was_disturbed_costs_no_more_than_the_next_one) {
    CHECK((cost_table({1, 2, 3}, {10, 90, 20}) == CostTable{0.0F, 1.0F, 2.0F, 2.0F}));
    CHECK((cost_table({1, 2, 3}, {90, 10, 20}) == CostTable{0.0F, 1.0F, 1.0F, 2.0F}));
}

ANER_CASE("S10", durations_below_the_clocks_resolution_give_a_table_too) {
    CHECK((cost_table({1, 2, 3}, {0, 0, 0}) == CostTable{0.0F, 1.0F, 1.0F, 1.0F}));
}
