/* Graphs in topological order without recursion: see graph.c. */
typedef struct kit_order {
    struct ggml_tensor **tensors; /* sources before users */
    struct ggml_tensor **leafs;
    size_t n_tensors;
    size_t n_nodes;
    size_t n_leafs;
} kit_order;
bool kit_graph_order(struct ggml_tensor **outputs, int n_outputs, kit_order *order);
void kit_graph_fill(struct ggml_cgraph *graph, const kit_order *order);
void kit_order_free(kit_order *order);
void kit_graph_will_be_placed(struct ggml_cgraph *graph);
void kit_graph_unplace(struct ggml_cgraph *graph);
void kit_tensor_unplace(struct ggml_tensor *tensor);
