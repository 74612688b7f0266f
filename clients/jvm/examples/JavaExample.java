// Asks one question and shows the answer as it is written, without a thread that waits.
import java.io.File;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import sessile.FileStorage;
import sessile.Sessile;
import sessile.SessileClient;
import sessile.StoppedException;

public final class JavaExample {
    public static void main(String[] args) throws Exception {
        try (SessileClient client = Sessile.builder(args[0]) // https://chat.example
                .auth(() -> System.getenv("CHAT_KEY"))
                .storage(new FileStorage(new File(args[1])))
                .build()) {
            client.onError(error -> System.err.println("[" + error.getCode() + "] " + error.getMessage()));
            CompletableFuture<String> ended = new CompletableFuture<>();

            client.create(Map.of("title", "Tides"))
                    .thenCompose(session -> session.send("Why are there two high tides a day?", Map.of("max_output_tokens", 200)))
                    .thenAccept(sent -> sent.getAnswer().onPiece(
                            piece -> System.out.print(piece.getDelta()),
                            (record, error) -> ended.complete(error == null ? record.getStatus().name() : error.toString())))
                    .exceptionally(error -> {
                        ended.completeExceptionally(error);
                        return null;
                    });

            System.out.println("\n[" + Sessile.await(ended) + "]");
        } catch (StoppedException error) {
            System.err.println("The server will not have us: " + error.getMessage());
        }
    }
}
