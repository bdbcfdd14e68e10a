import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

/**
 * Peer server|client HOST PORT HTTP_PORT: the sockets of Java.
 *
 * <p>At PORT a selector echoes, and blocking sockets ask; at HTTP_PORT there is the JDK's own server, asked by its HttpClient.
 */
public final class Peer {
    private static final int SOCKETS = 12;
    private static final int ROUNDS = 20;
    private static final int REQUESTS = 150;

    public static void main(String[] arguments) throws Exception {
        InetSocketAddress echo = new InetSocketAddress(arguments[1], Integer.parseInt(arguments[2]));
        InetSocketAddress http = new InetSocketAddress(arguments[1], Integer.parseInt(arguments[3]));
        if (arguments[0].equals("server")) {
            serveHttp(http);
            serveEcho(echo);
        } else {
            askEcho(echo);
            askHttp(http);
            System.out.println("right " + (SOCKETS * ROUNDS + REQUESTS));
        }
    }

    private static void serveHttp(InetSocketAddress address) throws IOException {
        HttpServer server = HttpServer.create(address, 50);
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }

    private static void serveEcho(InetSocketAddress address) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(address, 50).configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    if (accepted != null) {
                        accepted.configureBlocking(false);
                        accepted.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(64 << 10));
                    }
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Reads into the key's buffer, and writes from it what the other side takes. */
    private static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        int reads = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
        key.interestOps(reads | (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0));
    }

    private static byte[] bytes(int seed) {
        byte[] made = new byte[new int[] {1, 1000, 20_000, 300_000}[seed % 4]];
        new Random(seed).nextBytes(made);
        return made;
    }

    private static void check(byte[] sent, byte[] got) {
        if (!Arrays.equals(sent, got)) {
            throw new IllegalStateException(sent.length + " bytes came back as " + got.length + " others");
        }
    }

    private static void askEcho(InetSocketAddress address) throws Exception {
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int i = 0; i < SOCKETS; i++) {
            int number = i;
            all.add(CompletableFuture.runAsync(() -> askSocket(address, number), task -> new Thread(task).start()));
        }
        CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).join();
    }

    /** One thread writes while the other reads. */
    private static void askSocket(InetSocketAddress address, int number) {
        try (Socket socket = new Socket()) {
            socket.connect(address, 5000);
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(20_000);
            DataInputStream input = new DataInputStream(socket.getInputStream());
            for (int round = 0; round < ROUNDS; round++) {
                byte[] sent = bytes(number * ROUNDS + round);
                byte[] got = new byte[sent.length];
                CompletableFuture<Void> writing = CompletableFuture.runAsync(() -> write(socket, sent), task -> new Thread(task).start());
                input.readFully(got);
                writing.join();
                check(sent, got);
            }
        } catch (IOException problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static void write(Socket socket, byte[] sent) {
        try {
            socket.getOutputStream().write(sent);
        } catch (IOException problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static void askHttp(InetSocketAddress address) {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI uri = URI.create("http://" + address.getHostString() + ":" + address.getPort() + "/");
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int i = 0; i < REQUESTS; i++) {
            byte[] sent = bytes(i);
            HttpRequest request = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofByteArray(sent)).build();
            all.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()).thenAccept(answer -> check(sent, answer.body())));
            // At most so many at once.
            if (i % 10 == 9) {
                CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).join();
            }
        }
    }
}
