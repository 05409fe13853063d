// Products of Q4_1 weights with the tiled kernel against the reference kernels, over every remainder of its tiles.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

namespace {

struct Shape {
    std::int64_t rows;
    std::int64_t columns;
    std::int64_t depth;
};

std::vector<float> product(const Shape & s, int threads, bool reference) {
    std::mt19937 random(static_cast<std::uint32_t>(s.rows * 1000 + s.columns * 10 + s.depth));
    std::uniform_real_distribution<float> value(-0.7F, 1.3F);
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(ggml_init({64U << 20, nullptr, false}), ggml_free);
    ggml_tensor * weights = ggml_new_tensor_2d(context.get(), GGML_TYPE_Q4_1, s.depth, s.rows);
    ggml_tensor * input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, s.depth, s.columns);
    std::vector<float> floats(static_cast<std::size_t>(s.depth * s.rows));
    for (float & one : floats) {
        one = value(random);
    }
    ggml_quantize_chunk(GGML_TYPE_Q4_1, floats.data(), weights->data, 0, s.rows, s.depth, nullptr);
    for (std::int64_t i = 0; i < s.depth * s.columns; ++i) {
        static_cast<float *>(input->data)[i] = 2 * value(random);
    }
    ggml_tensor * result = ggml_mul_mat(context.get(), weights, input);
    ggml_cgraph * graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, result);
    const std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> backend(ggml_backend_cpu_init(), ggml_backend_free);
    ggml_backend_cpu_set_n_threads(backend.get(), threads);
    ggml_backend_cpu_set_use_ref(backend.get(), reference);
    ggml_backend_graph_compute(backend.get(), graph);
    const float * data = static_cast<const float *>(result->data);
    return {data, data + s.rows * s.columns};
}

}  // namespace

int main() {
    double worst = 0;
    int n_products = 0;
    for (const std::int64_t rows : {1, 3, 4, 5, 7, 8, 31, 64, 259}) {
        for (const std::int64_t columns : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
            for (const std::int64_t depth : {32, 64, 576}) {
                for (const int threads : {1, 2, 3}) {
                    const Shape shape{rows, columns, depth};
                    const std::vector<float> tiled = product(shape, threads, false);
                    const std::vector<float> reference = product(shape, threads, true);
                    for (std::size_t i = 0; i < tiled.size(); ++i) {
                        worst = std::max(worst, std::fabs(static_cast<double>(tiled[i]) - static_cast<double>(reference[i])) /
                                                    (1 + std::fabs(static_cast<double>(reference[i]))));
                    }
                    ++n_products;
                }
            }
        }
    }
    std::printf("%d products, worst relative difference %g\n", n_products, worst);
    return worst < 1e-4 ? 0 : 1;
}
